//! The report for people. In a terminal it has colour; piped, it is the same words.

use std::io::{self, IsTerminal, Write};

use super::report::{Caught, Check, Counts, Found, Report, Side, Verdict};

/// Hazards that are told at length; `--json` has all of them.
const TOLD: usize = 3;

/// Whether words are coloured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(bool);

const RED: u8 = 31;
const GREEN: u8 = 32;
const BOLD: u8 = 1;
const DIM: u8 = 2;

impl Paint {
    pub(super) fn of_terminal() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self(io::stdout().is_terminal() && !refused && !dumb)
    }

    fn with(self, code: u8, text: impl AsRef<str>) -> String {
        let text = text.as_ref();
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes the report.
pub(super) fn write(report: &Report, out: &mut impl Write, paint: Paint) -> io::Result<()> {
    head(report, out, paint)?;
    for check in &report.checks {
        let words = words(report, check);
        let (colour, verdict) = match check.result {
            Verdict::Passed => (GREEN, "ok".to_owned()),
            Verdict::Failed => (RED, hazards(check)),
            Verdict::Skipped => (DIM, "skipped".to_owned()),
        };
        let verdict = paint.with(colour, format!("{verdict:<12}"));
        writeln!(out, "  {:<9} {verdict} {}", check.check, paint.with(DIM, words))?;
    }
    for captured in &report.captured {
        let (colour, verdict) = if captured.refused.is_none() { (GREEN, "ok") } else { (RED, "refused") };
        let verdict = paint.with(colour, format!("{verdict:<12}"));
        writeln!(out, "  {:<9} {verdict} {}", "captured", paint.with(DIM, captured.words()))?;
    }
    writeln!(out)?;
    for found in report.hazards.iter().take(TOLD) {
        hazard(found, out, paint)?;
    }
    if report.hazards.len() > TOLD {
        writeln!(out, "... and {} more; --json lists them all.\n", report.hazards.len() - TOLD)?;
    }
    verdict(report, out, paint)
}

fn head(report: &Report, out: &mut impl Write, paint: Paint) -> io::Result<()> {
    let (step, arena) = (&report.step, &report.arena);
    let title = format!("{}: {}", report.model, step.bucket);
    writeln!(
        out,
        "{}, {} positions, index keys {}, {}",
        paint.with(BOLD, title),
        step.max_positions,
        step.index_k,
        step.schedule
    )?;
    if let Some(mutant) = &report.mutant {
        writeln!(out, "{} {}: {}", paint.with(RED, "with mutant"), mutant.slug, mutant.place)?;
    }
    writeln!(
        out,
        "\n  graph     {} nodes, {} edges, {} lanes; critical path {} nodes, width {}",
        step.nodes, step.edges, step.lanes, step.critical_path, step.width
    )?;
    let times = arena.bytes as f64 / arena.lower_bound_bytes.max(1) as f64;
    writeln!(
        out,
        "  arena     {} forked ({times:.2} of the lower bound), {} serial, {} unshared\n",
        bytes(arena.bytes),
        bytes(arena.serial_bytes),
        bytes(arena.unshared_bytes)
    )
}

/// What a check found, or looks for.
fn words(report: &Report, check: &Check) -> String {
    let passed = check.result == Verdict::Passed;
    match (check.check, &report.proof) {
        ("order", Some(p)) => format!("{} conflicting pairs of accesses, each ordered by edges", p.pairs),
        ("order", None) if passed => "every conflicting pair of accesses is ordered by edges".to_owned(),
        ("order", None) => "two accesses to the same bytes, one a write, and no edges between".to_owned(),
        ("value", Some(p)) => format!("{} reads, each finds its value", p.reads),
        ("value", None) if passed => "every read finds its value".to_owned(),
        ("value", None) => "a read finds another value than its own".to_owned(),
        ("loop", _) => looped(report),
        ("purity", _) if passed => "built for two requests, it is the same graph".to_owned(),
        ("purity", _) => "built for two requests, it is not the same graph".to_owned(),
        (_, _) if passed => "inputs are read only through views that the step made".to_owned(),
        _ => "an input is read through a view that the step did not make".to_owned(),
    }
}

fn looped(report: &Report) -> String {
    let Some(first) = report.loops.first() else {
        return "the step itself is refused".to_owned();
    };
    let pairs: usize = report.loops.iter().filter_map(|l| l.proof.as_ref()).map(|p: &Counts| p.pairs).sum();
    let buckets = report.buckets.len();
    format!(
        "{} ordered pairs of {buckets} buckets, prefill included, with 1 and with 2 steps in flight: {} pairs",
        first.ordered_pairs_of_buckets,
        count(pairs)
    )
}

fn hazard(found: &Found, out: &mut impl Write, paint: Paint) -> io::Result<()> {
    let Some(first) = &found.first else {
        return writeln!(out, "{}\n", paint.with(RED, &found.text));
    };
    let said = match (found.check, &found.second) {
        ("value", Some(_)) => "the first finds what the second wrote over its value",
        (_, Some(_)) => "the same bytes, and no edge orders the two",
        (_, None) => "nothing has written this before",
    };
    writeln!(out, "{}: {said}", paint.with(RED, found.check))?;
    let sides: Vec<&Side> = [first].into_iter().chain(&found.second).collect();
    let width = sides.iter().map(|s| s.op.len()).max().unwrap_or(0);
    for side in sides {
        let early = if side.before_wait { " before its wait" } else { "" };
        let op = paint.with(BOLD, format!("{:<width$}", side.op));
        writeln!(out, "  {op}  {:<6} {}{early}, on lane {}", side.access, side.value, side.lane)?;
    }
    let memory = found.memory.as_deref().unwrap_or("memory");
    match &found.bytes {
        Some(bytes) => writeln!(out, "  in {memory}, bytes {}..{}", bytes.start, bytes.end)?,
        None => writeln!(out, "  in rows of {memory}")?,
    }
    if let Some(ancestor) = &found.nearest_common_ancestor {
        writeln!(out, "  nearest common ancestor {ancestor}")?;
    }
    writeln!(out)
}

fn verdict(report: &Report, out: &mut impl Write, paint: Paint) -> io::Result<()> {
    let ms = &report.milliseconds;
    let times = format!(
        "{:.2} s (build and plan {:.2}, proof {:.2}, loop {:.2})",
        ms.total / 1e3,
        ms.build / 1e3,
        ms.proof / 1e3,
        ms.looped / 1e3
    );
    if report.proved {
        return writeln!(out, "{} in {times}", paint.with(GREEN, "proved free of hazards"));
    }
    let failed: Vec<String> =
        report.checks.iter().filter(|c| c.result == Verdict::Failed).map(|c| c.check.to_owned()).collect();
    writeln!(out, "{} by {} in {times}", paint.with(RED, "refused"), failed.join(" and "))
}

/// Writes what became of each mutant.
pub(super) fn table(found: &[Caught], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{:<20} {:<14} {:>7}  bug", "mutant", "caught by", "hazards")?;
    for one in found {
        let by = if one.caught_by.is_empty() { "nothing".to_owned() } else { one.caught_by.join(", ") };
        writeln!(out, "{:<20} {by:<14} {:>7}  {}", one.mutant, one.hazards, one.about)?;
    }
    Ok(())
}

fn hazards(check: &Check) -> String {
    format!("{} hazard{}", check.hazards, if check.hazards == 1 { "" } else { "s" })
}

fn bytes(n: usize) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / 1_048_576.0),
    }
}

fn count(n: usize) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        _ => format!("{:.1} million", n as f64 / 1e6),
    }
}
