//! Pictures of a step: SVG for people, DOT for other tools.
//!
//! The SVG has lanes as columns and time downward, joins as lines between columns, and beside them the arena: each transient a
//! bar over its bytes, from its first use to its last. What a hazard touches is red, and the first hazard is told in words.
//! Layers that repeat are drawn once; lanes that are never alive together share a column.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::graph::{Class, EdgeKind, Graph, NodeId};
use super::hazard::Hazard;
use super::plan::Plan;
use crate::ops::BufferId;

const ROW: usize = 26;
const COLUMN: usize = 150;
const BOX: usize = 126;
const ARENA: usize = 400;
const TOP: usize = 92;
const LEFT: usize = 100;

/// The graph in DOT: a cluster for each lane, programmatic edges dashed, hazards as red lines without arrowheads.
#[must_use]
pub fn dot(graph: &Graph, hazards: &[Hazard]) -> String {
    let mut text = "digraph step {\n  rankdir=TB; node [shape=box, fontname=monospace];\n".to_owned();
    for (lane, info) in graph.lanes.iter().enumerate() {
        let _ = writeln!(text, "  subgraph cluster_{lane} {{ label=\"{}\";", info.name);
        for id in graph.node_ids().filter(|id| graph.node(*id).lane.0 as usize == lane) {
            let _ = writeln!(text, "    n{} [label=\"{}\"];", id.0, graph.label(id));
        }
        text.push_str("  }\n");
    }
    for edge in &graph.edges {
        let style = if edge.kind == EdgeKind::Programmatic { " [style=dashed]" } else { "" };
        let _ = writeln!(text, "  n{} -> n{}{style};", edge.from.0, edge.to.0);
    }
    for (a, b) in hazards.iter().filter_map(pair) {
        let _ = writeln!(text, "  n{} -> n{} [color=red, penwidth=3, dir=none];", a.0, b.0);
    }
    text.push_str("}\n");
    text
}

/// The graph and its plan in SVG.
#[must_use]
pub fn svg(graph: &Graph, plan: &Plan, hazards: &[Hazard]) -> String {
    let picture = Picture::new(graph, hazards);
    let height = TOP + ROW * (picture.rows + 1);
    let width = picture.arena_left() + ARENA + 24;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    caption(&mut text, hazards);
    picture.headings(&mut text, plan);
    picture.bars(&mut text, plan, hazards);
    picture.edges(&mut text);
    picture.nodes(&mut text, hazards);
    picture.hazards(&mut text, hazards);
    text.push_str("</svg>\n");
    text
}

fn pair(hazard: &Hazard) -> Option<(NodeId, NodeId)> {
    hazard.second.as_ref().map(|second| (hazard.first.node, second.node))
}

/// What is drawn, and where.
struct Picture<'a> {
    graph: &'a Graph,
    /// Column of each lane, by name.
    columns: BTreeMap<&'a str, usize>,
    /// Row of each node; `None` if its layer is folded.
    row: Vec<Option<usize>>,
    /// First row, name, and how many layers like it are folded into it.
    scopes: Vec<(usize, &'a str, usize)>,
    rows: usize,
}

impl<'a> Picture<'a> {
    fn new(graph: &'a Graph, hazards: &[Hazard]) -> Self {
        let mut picture = Self {
            graph,
            columns: BTreeMap::new(),
            row: vec![None; graph.nodes.len()],
            scopes: Vec::new(),
            rows: 0,
        };
        let hot = |at: usize| {
            let is = |id: NodeId| id.0 as usize == at;
            hazards.iter().any(|h| is(h.first.node) || h.second.as_ref().is_some_and(|p| is(p.node)))
        };
        let mut together = Vec::new();
        let mut known: BTreeMap<Vec<(&str, &str)>, usize> = BTreeMap::new();
        for scope in scopes(graph) {
            let shape = scope.clone().map(|at| (graph.nodes[at].op.name(), picture.lane(at))).collect();
            if let Some(&like) = known.get(&shape)
                && !scope.clone().any(hot)
            {
                picture.scopes[like].2 += 1;
                continue;
            }
            known.entry(shape).or_insert(picture.scopes.len());
            picture.scopes.push((picture.rows, &graph.nodes[scope.start].scope, 0));
            together.extend(picture.forks(scope.clone()));
            for at in scope {
                picture.row[at] = Some(picture.rows);
                picture.rows += 1;
            }
        }
        picture.columns = columns(&together);
        picture
    }

    /// Lanes of a layer that may be alive together: those that come between two nodes of an outermost lane, in order, after
    /// it.
    fn forks(&self, scope: std::ops::Range<usize>) -> Vec<Vec<&'a str>> {
        let mut forks: Vec<Vec<&str>> = Vec::new();
        for at in scope {
            let (lane, outermost) =
                (self.lane(at), self.graph.lanes[self.graph.nodes[at].lane.0 as usize].parent.is_none());
            match forks.last_mut() {
                Some(fork) if !outermost => {
                    if !fork.contains(&lane) {
                        fork.push(lane);
                    }
                }
                _ => forks.push(vec![lane]),
            }
        }
        forks
    }

    fn lane(&self, node: usize) -> &'a str {
        &self.graph.lanes[self.graph.nodes[node].lane.0 as usize].name
    }

    fn arena_left(&self) -> usize {
        LEFT + COLUMN * (self.columns.values().max().map_or(0, |last| last + 1)) + 24
    }

    /// The middle of a node's box.
    fn at(&self, node: NodeId) -> Option<(usize, usize)> {
        let row = self.row[node.0 as usize]?;
        let column = self.columns.get(self.lane(node.0 as usize))?;
        Some((LEFT + column * COLUMN + BOX / 2, TOP + row * ROW + ROW / 2))
    }

    fn headings(&self, text: &mut String, plan: &Plan) {
        let mut lines = vec![0; self.columns.len()];
        for (name, &column) in &self.columns {
            let (x, y) = (LEFT + column * COLUMN, 56 + 14 * lines[column]);
            lines[column] += 1;
            let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" font-weight=\"bold\">{}</text>", escaped(name));
        }
        let x = self.arena_left();
        let arena = format!("arena, {} bytes", plan.arena_bytes);
        let _ = writeln!(text, "<text x=\"{x}\" y=\"56\" font-weight=\"bold\">{arena}</text>");
        for &(row, name, folded) in &self.scopes {
            let y = TOP + row * ROW;
            let right = self.arena_left() + ARENA;
            let _ = writeln!(text, "<line x1=\"0\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#ddd\"/>");
            let name = escaped(name);
            let _ = writeln!(text, "<text x=\"6\" y=\"{}\" fill=\"#666\">{name}</text>", y + 16);
            if folded > 0 {
                let y = y + 30;
                let _ = writeln!(text, "<text x=\"6\" y=\"{y}\" fill=\"#666\">(+{folded} alike)</text>");
            }
        }
    }

    fn bars(&self, text: &mut String, plan: &Plan, hazards: &[Hazard]) {
        let mut spans: Vec<Option<(usize, usize)>> = vec![None; self.graph.buffers.len()];
        for (node, row) in self.graph.nodes.iter().zip(&self.row).filter_map(|(n, r)| r.map(|r| (n, r))) {
            for access in node.op.regions() {
                let span = &mut spans[access.region.buffer.0 as usize];
                *span = Some(span.map_or((row, row), |(first, last)| (first.min(row), last.max(row))));
            }
        }
        for (id, span) in self.graph.buffer_ids().zip(spans) {
            if let (Class::Transient, Some(span)) = (self.graph.buffer(id).class, span) {
                self.bar(text, plan, id, span, hazards);
            }
        }
    }

    fn bar(&self, text: &mut String, plan: &Plan, id: BufferId, span: (usize, usize), hazards: &[Hazard]) {
        let Some(offset) = plan.offsets.get(id.0 as usize).copied().flatten() else { return };
        let buffer = self.graph.buffer(id);
        let scale = |bytes: usize| bytes * ARENA / plan.arena_bytes.max(1);
        let (x, width) = (self.arena_left() + scale(offset), scale(buffer.bytes).max(2));
        let (y, height) = (TOP + span.0 * ROW + 3, (span.1 - span.0 + 1) * ROW - 6);
        let named = |p: &super::hazard::Party| p.object == buffer.name;
        let hot = hazards.iter().any(|h| named(&h.first) || h.second.as_ref().is_some_and(named));
        let fill = if hot { "#d33" } else { "#7aa6d8" };
        let end = offset + buffer.bytes;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\" fill-opacity=\"0.55\" \
             stroke=\"{fill}\"><title>{} bytes {offset}..{end}</title></rect>",
            escaped(&buffer.name)
        );
    }

    fn edges(&self, text: &mut String) {
        for edge in &self.graph.edges {
            let (Some((x1, y1)), Some((x2, y2))) = (self.at(edge.from), self.at(edge.to)) else { continue };
            let dash = if edge.kind == EdgeKind::Programmatic { " stroke-dasharray=\"4 3\"" } else { "" };
            let (y1, y2) = (y1 + 10, y2.saturating_sub(10));
            let middle = usize::midpoint(y1, y2);
            let _ = writeln!(
                text,
                "<path d=\"M{x1} {y1} C{x1} {middle} {x2} {middle} {x2} {y2}\" fill=\"none\" stroke=\"#999\"{dash}/>"
            );
        }
    }

    fn nodes(&self, text: &mut String, hazards: &[Hazard]) {
        for id in self.graph.node_ids() {
            let Some((x, y)) = self.at(id) else { continue };
            let hot =
                hazards.iter().any(|h| h.first.node == id || h.second.as_ref().is_some_and(|p| p.node == id));
            let (fill, stroke) = if hot { ("#fdd", "#d00") } else { ("#f4f4f4", "#888") };
            let (left, top) = (x - BOX / 2, y - 10);
            let _ = writeln!(
                text,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{BOX}\" height=\"20\" rx=\"3\" fill=\"{fill}\" \
                 stroke=\"{stroke}\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{} #{}</text>",
                y + 4,
                self.graph.node(id).op.name(),
                id.0
            );
        }
    }

    fn hazards(&self, text: &mut String, hazards: &[Hazard]) {
        for hazard in hazards {
            let Some((a, b)) = pair(hazard) else { continue };
            let (Some((x1, y1)), Some((x2, y2))) = (self.at(a), self.at(b)) else { continue };
            let title = escaped(&hazard.to_string());
            let half = BOX / 2;
            let sideways = if x1 == x2 { 40 } else { (x1.abs_diff(x2) - BOX).min(120) / 2 };
            // From and to the sides that face each other; within a column, around on its right.
            let (x1, c1, x2, c2) = match x1.cmp(&x2) {
                Ordering::Less => (x1 + half, x1 + half + sideways, x2 - half, x2 - half - sideways),
                Ordering::Greater => (x1 - half, x1 - half - sideways, x2 + half, x2 + half + sideways),
                Ordering::Equal => (x1 + half, x1 + half + sideways, x2 + half, x2 + half + sideways),
            };
            let _ = writeln!(
                text,
                "<path d=\"M{x1} {y1} C{c1} {y1} {c2} {y2} {x2} {y2}\" fill=\"none\" stroke=\"#d00\" \
                 stroke-width=\"3\" stroke-opacity=\"0.8\"><title>{title}</title></path>"
            );
        }
    }
}

/// The first hazard in words, its lanes on a line of their own.
fn caption(text: &mut String, hazards: &[Hazard]) {
    let words = hazards.first().map(ToString::to_string).unwrap_or_default();
    let (what, lanes) = words.split_at(words.rfind(" (lanes").unwrap_or(words.len()));
    for (line, y) in [(what, 18), (lanes.trim(), 33)].into_iter().filter(|(line, _)| !line.is_empty()) {
        let _ = writeln!(text, "<text x=\"6\" y=\"{y}\" fill=\"#d00\">{}</text>", escaped(line));
    }
}

/// A column for each lane, the same in every layer; lanes of different forks may share one.
fn columns<'a>(forks: &[Vec<&'a str>]) -> BTreeMap<&'a str, usize> {
    let mut columns = BTreeMap::new();
    for fork in forks {
        for (place, name) in fork.iter().copied().enumerate() {
            let column = columns.entry(name).or_insert(0);
            *column = place.max(*column);
        }
    }
    let clash = |fork: &Vec<&str>| {
        let mut taken: Vec<_> = fork.iter().map(|name| columns[name]).collect();
        taken.sort_unstable();
        taken.windows(2).any(|w| w[0] == w[1])
    };
    if forks.iter().any(clash) {
        columns.values_mut().zip(0..).for_each(|(column, own)| *column = own);
    }
    columns
}

/// Runs of nodes with one scope, in append order.
fn scopes(graph: &Graph) -> Vec<std::ops::Range<usize>> {
    let mut scopes: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        match scopes.last_mut() {
            Some(last) if graph.nodes[last.start].scope == node.scope => last.end = at + 1,
            _ => scopes.push(at..at + 1),
        }
    }
    scopes
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
