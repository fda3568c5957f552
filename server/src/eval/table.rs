//! The measured table.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::suites::Suite;
use crate::cli::IndexK;
use crate::interval::{Proportion, percent};
use crate::sessions::Session;

/// Misses of one prompt length that the bar allows.
const MISSES_OF_A_LENGTH: usize = 2;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    pub model: String,
    pub seed: u64,
    /// Layers without their compressed rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub knocked_out: Vec<usize>,
    pub wall_s: f64,
    pub rows: Vec<Row>,
    /// Items with markup in content, no answer, text behind a call, or no end.
    pub frame_errors: Proportion,
    pub agreement: Vec<Agreement>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub right: Proportion,
    /// Of the items that ask for a code or value with the same character twice in a row, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doubled: Option<Proportion>,
    pub bar: Option<f64>,
    pub verdict: Option<Verdict>,
    /// The prompt length with most misses, and how many they are.
    pub worst_length: Option<(usize, usize)>,
    /// The first wrong item, to look at: `flashlane tasks` makes it from its seed and index.
    pub first_wrong: Option<u64>,
}

/// Of a bar, given what so many items can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    /// Below the bar, which the interval still reaches.
    Open,
    Missed,
}

/// The same items with other index keys.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    pub index_k: &'static str,
    pub with: &'static str,
    /// Items with the very same tokens.
    pub same: Proportion,
    pub right: Proportion,
    pub right_with: Proportion,
}

impl Table {
    /// Adds the sessions of a suite.
    pub fn push(&mut self, suite: &Suite, sessions: &[Session]) {
        let right = Proportion::new(sessions.iter().filter(|s| s.right()).count(), sessions.len());
        let doubled = suite.scripts.iter().zip(sessions).filter(|(script, _)| script.doubled());
        let doubled: Vec<bool> = doubled.map(|(_, session)| session.right()).collect();
        let doubled = (!doubled.is_empty())
            .then(|| Proportion::new(doubled.iter().filter(|right| **right).count(), doubled.len()));
        let worst_length = worst_length(&suite.lengths, sessions);
        let verdict = suite.bar.map(|bar| match right {
            _ if worst_length.is_some_and(|(_, misses)| misses > MISSES_OF_A_LENGTH) => Verdict::Missed,
            _ if right.rate() >= bar => Verdict::Met,
            _ if right.high >= bar => Verdict::Open,
            _ => Verdict::Missed,
        });
        let first_wrong = sessions.iter().find(|s| !s.right()).map(|s| s.index);
        let (name, bar) = (suite.name, suite.bar);
        self.rows.push(Row { name, right, doubled, bar, verdict, worst_length, first_wrong });
        let broken = sessions.iter().filter(|s| s.frame_error()).count();
        self.frame_errors =
            Proportion::new(self.frame_errors.count + broken, self.frame_errors.of + sessions.len());
    }

    /// No bar is missed for sure.
    pub fn passed(&self) -> bool {
        self.rows.iter().all(|row| row.verdict != Some(Verdict::Missed))
    }

    /// Writes the table as lines of text.
    ///
    /// # Errors
    /// The output failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{} on held-out items of seed {}, {:.0} s", self.model, self.seed, self.wall_s)?;
        if !self.knocked_out.is_empty() {
            writeln!(out, "without the compressed rows of layers {:?}", self.knocked_out)?;
        }
        writeln!(out, "{:<18} {:>9} {:>8}   {:<20} {:>7}", "kind", "right", "rate", "95 % interval", "bar")?;
        for row in &self.rows {
            write_proportion(row.name, &row.right, out)?;
            match (row.bar, row.verdict) {
                (Some(bar), Some(verdict)) => write!(out, " {:>7} {}", percent(bar), verdict.name())?,
                _ => write!(out, " {:>7}", "-")?,
            }
            if let Some((length, misses)) = row.worst_length {
                write!(out, ", at most {misses} missed of one length ({length})")?;
            }
            writeln!(
                out,
                "{}",
                row.first_wrong.map_or_else(String::new, |index| format!(", first wrong: {index}"))
            )?;
            if let Some(doubled) = row.doubled {
                write_proportion("  doubled", &doubled, out)?;
                writeln!(out, " {:>7} the same character twice in a row", "-")?;
            }
        }
        write_proportion("frame errors", &self.frame_errors, out)?;
        writeln!(out, " {:>7}", "0")?;
        for other in &self.agreement {
            writeln!(
                out,
                "index keys {} and {}: the same tokens in {}; right {}/{} and {}/{}",
                other.index_k,
                other.with,
                other.same,
                other.right.count,
                other.right.of,
                other.right_with.count,
                other.right_with.of,
            )?;
        }
        Ok(())
    }
}

pub(super) fn write_proportion(name: &str, share: &Proportion, out: &mut impl Write) -> io::Result<()> {
    let counts = format!("{}/{}", share.count, share.of);
    let interval = format!("{} to {}", percent(share.low), percent(share.high));
    write!(out, "{name:<18} {counts:>9} {:>8}   {interval:<20}", percent(share.rate()))
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Open => "below, within the interval",
            Self::Missed => "MISSED",
        }
    }
}

fn worst_length(lengths: &[usize], sessions: &[Session]) -> Option<(usize, usize)> {
    let mut misses: BTreeMap<usize, usize> = BTreeMap::new();
    for (length, session) in lengths.iter().zip(sessions) {
        *misses.entry(*length).or_default() += usize::from(!session.right());
    }
    misses.into_iter().rev().max_by_key(|(_, misses)| *misses)
}

pub(super) const fn index_k(format: IndexK) -> &'static str {
    match format {
        IndexK::Bf16 => "bf16",
        IndexK::Fp8 => "fp8",
        IndexK::Fp4 => "fp4",
    }
}

#[cfg(test)]
mod tests {
    use super::{Table, Verdict};
    use crate::eval::Suite;
    use crate::sessions::{Class, Faults, Session};

    fn sessions(right: usize, wrong: usize) -> Vec<Session> {
        let session = |index: usize| Session {
            index: index as u64,
            class: Class::Done,
            faults: Faults { wrong_value: index >= right, ..Faults::default() },
            answers: Vec::new(),
            error: None,
            late: false,
        };
        (0..right + wrong).map(session).collect()
    }

    fn judged(lengths: Vec<usize>, sessions: &[Session]) -> Table {
        let suite = Suite { name: "walk", scripts: Vec::new(), bar: Some(0.995), compared: 0, lengths };
        let mut table = Table::default();
        table.push(&suite, sessions);
        table
    }

    #[test]
    fn a_bar_is_missed_only_when_the_count_is_sure_of_it() {
        let verdict = |right, wrong| judged(Vec::new(), &sessions(right, wrong)).rows[0].verdict;
        assert_eq!(verdict(200, 0), Some(Verdict::Met));
        assert_eq!(verdict(199, 1), Some(Verdict::Met));
        assert_eq!(verdict(19, 1), Some(Verdict::Open));
        assert_eq!(verdict(190, 10), Some(Verdict::Missed));
        let table = judged(vec![1; 300], &sessions(2999, 3)[2702..]);
        assert_eq!((table.rows[0].worst_length, table.passed()), (Some((1, 3)), false));
    }

    #[test]
    fn frame_errors_are_counted_over_all_kinds() {
        let mut all = sessions(3, 1);
        all[0].class = Class::Leak;
        all[1].class = Class::NoTool;
        let table = judged(Vec::new(), &all);
        assert_eq!((table.frame_errors.count, table.rows[0].right.count), (1, 1));
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("walk                     1/4      25%"), "{text}");
    }
}
