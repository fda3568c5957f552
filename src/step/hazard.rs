//! What a proof can find, in words.

use std::fmt;
use std::ops::Range;

use super::graph::NodeId;
use super::program::{Kind, Program, Space, Use};
use crate::ops::Mode;

/// The rule that a hazard breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Edges of a graph that can run go round no circle.
    Acyclic,
    /// Nothing writes what is frozen during the program.
    Frozen,
    /// Of two accesses to the same bytes, one of them a write, one ends before the other starts.
    Order,
    /// A read finds the value that it names: written before it, and overwritten by no other value in between.
    Value,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acyclic => "acyclic",
            Self::Frozen => "frozen",
            Self::Order => "order",
            Self::Value => "value",
        })
    }
}

/// One side of a hazard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    pub node: NodeId,
    /// The node's label, as [`super::Graph::label`] gives it.
    pub op: String,
    pub lane: String,
    /// The value that it means to access.
    pub object: String,
    pub mode: Mode,
    pub early: bool,
}

impl Party {
    pub(super) fn new(program: &Program, node: usize, one: &Use) -> Self {
        let actor = &program.nodes[node];
        Self {
            node: NodeId(u32::try_from(node).unwrap_or(u32::MAX)),
            op: actor.label.clone(),
            lane: actor.lane.clone(),
            object: program.objects[one.object.0 as usize].name.clone(),
            mode: one.mode,
            early: one.early,
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match (self.mode, self.early) {
            (Mode::Read, false) => "reads",
            (Mode::Read, true) => "reads, before its wait,",
            (Mode::Write, _) => "writes",
        };
        write!(f, "{} {verb} {}", self.op, self.object)
    }
}

/// Something that a program may do wrong in some legal order of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hazard {
    pub rule: Rule,
    /// The access that comes first in the program's list of nodes; of a value hazard, the read.
    pub first: Party,
    /// `None` if the hazard is the first party's alone.
    pub second: Option<Party>,
    pub space: Space,
    /// The bytes that both touch; rows of a pool or state have none.
    pub bytes: Option<Range<usize>>,
    /// The last node that both descend from.
    pub ancestor: Option<String>,
}

impl Hazard {
    pub(super) fn key(&self) -> (NodeId, Option<NodeId>, Rule, usize) {
        let start = self.bytes.as_ref().map_or(0, |b| b.start);
        (self.first.node, self.second.as_ref().map(|p| p.node), self.rule, start)
    }

    fn place(&self) -> String {
        match &self.bytes {
            Some(bytes) => format!("{} bytes {}..{}", self.space, bytes.start, bytes.end),
            None => format!("rows of {}", self.space),
        }
    }
}

impl fmt::Display for Hazard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        let place = self.place();
        match (self.rule, &self.second) {
            (Rule::Acyclic, _) => write!(f, "{} waits, by way of others, for itself", self.first.op)?,
            (Rule::Frozen, _) => write!(f, "{} ({place}), which nothing may write in a step", self.first)?,
            (Rule::Value, None) => write!(f, "{} ({place}), which nothing has written before", self.first)?,
            (Rule::Value, Some(second)) => {
                write!(f, "{} ({place}), but before that {second} over it", self.first)?;
            }
            (Rule::Order, None) => {
                write!(f, "{} and the same node uses those bytes ({place}) otherwise", self.first)?;
            }
            (Rule::Order, Some(second)) => {
                write!(f, "{} while {second}: the same {place}, and no edge orders them", self.first)?;
            }
        }
        let lanes = self.second.as_ref().map(|s| (&self.first.lane, &s.lane));
        if let Some((first, second)) = lanes {
            let ancestor = self.ancestor.as_deref().unwrap_or("none");
            write!(f, " (lanes {first} and {second}; nearest common ancestor: {ancestor})")?;
        }
        Ok(())
    }
}

/// Bytes, or nothing where offsets stand for rows.
pub(super) fn bytes_of(space: Space, range: Range<usize>) -> Option<Range<usize>> {
    (!space.symbolic()).then_some(range)
}

/// Whether readers of such an object need a writer in the program.
pub(super) fn needs_writer(kind: Kind) -> bool {
    kind == Kind::Made
}
