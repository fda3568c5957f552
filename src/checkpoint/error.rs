//! Why a checkpoint was refused.

use std::path::PathBuf;

/// An error names the file, key or tensor, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: std::io::Error },
    /// `config.json` has a bad value at `key`.
    #[error("config.json: {key} {}", shown(.problem))]
    Config { key: String, problem: String },
    /// `config.json` describes a model that is not served.
    #[error("config.json: {}", shown(.0))]
    Unsupported(String),
    /// A file is not what its name says.
    #[error("{}: {}", shown(.file), shown(.problem))]
    File { file: String, problem: String },
    /// Tensors are missing, unknown or wrong. Holds all of them; shows the first few.
    #[error("{}", summary(.0))]
    Tensors(Vec<TensorProblem>),
    /// The output of a conversion cannot be what was asked for.
    #[error("{0}")]
    Quantize(String),
}

impl CheckpointError {
    pub(super) fn file(file: &str, problem: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), problem: problem.into() }
    }

    pub(super) fn io(path: &std::path::Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

/// What is wrong with one tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorProblem {
    #[error("{name} is missing; expected shape {shape:?}")]
    Missing { name: String, shape: Vec<usize> },
    #[error("{name}: expected shape {expected:?}, found {found:?}")]
    Shape { name: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("{name}: expected type {expected}, found {found}")]
    Dtype { name: String, expected: &'static str, found: String },
    #[error("{name} is not a tensor of this model as config.json describes it")]
    Unknown { name: String },
    #[error("{name} appears twice, as {first} and as {second}")]
    Duplicate { name: String, first: String, second: String },
    #[error("{name}: scale {index} is not a finite number from 0 up")]
    Scale { name: String, index: usize },
    #[error("{name}: element {index} is {value}, expected a finite number")]
    NotFinite { name: String, index: usize, value: String },
    #[error("{name}: row {row} names expert {found}, expected one of 0..{experts}")]
    Expert { name: String, row: usize, found: i64, experts: usize },
}

/// How many problems a message spells out.
const SHOWN: usize = 5;

fn summary(problems: &[TensorProblem]) -> String {
    let first: Vec<String> = problems.iter().take(SHOWN).map(|p| shown(&p.to_string())).collect();
    let rest = problems.len().saturating_sub(SHOWN);
    let tail = if rest == 0 { String::new() } else { format!("; and {rest} more") };
    format!("{}{tail}", first.join("; "))
}

/// Characters of a message; a file can hold a name or value of any length.
const LONGEST: usize = 300;

/// One line of bounded length, whatever a file holds: control characters escaped, the middle of a long text left out.
fn shown(text: &str) -> String {
    let count = text.chars().count();
    let (head, tail) = if count > LONGEST { (LONGEST * 2 / 3, LONGEST / 3) } else { (count, 0) };
    let mut out = String::new();
    let mut push = |c: char| if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) };
    text.chars().take(head).for_each(&mut push);
    if count > LONGEST {
        " ... ".chars().for_each(&mut push);
        text.chars().skip(count - tail).for_each(&mut push);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{CheckpointError, LONGEST, TensorProblem};

    #[test]
    fn messages_are_one_line_of_bounded_length() {
        let unknown = |name: &str| TensorProblem::Unknown { name: name.to_owned() };
        let long = CheckpointError::Tensors(vec![unknown(&"ä".repeat(100_000)); 3]).to_string();
        assert!(long.chars().count() < 3 * (LONGEST + 10), "{long}");
        assert!(
            long.contains(" ... ")
                && long.ends_with("is not a tensor of this model as config.json describes it")
        );
        let raw = CheckpointError::Tensors(vec![unknown("a\nb\u{1b}[31m")]).to_string();
        assert_eq!(raw, "a\\nb\\u{1b}[31m is not a tensor of this model as config.json describes it");
        let value =
            CheckpointError::Config { key: "k".into(), problem: format!("found {}", "9".repeat(9999)) };
        assert!(value.to_string().len() < LONGEST + 40, "{value}");
    }
}
