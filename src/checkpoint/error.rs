//! Why a checkpoint was refused.

use std::path::PathBuf;

/// An error names the file, key or tensor, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// `config.json` has a bad value at `key`.
    #[error("config.json: {key} {problem}")]
    Config { key: String, problem: String },
    /// `config.json` describes a model that is not served.
    #[error("config.json: {0}")]
    Unsupported(String),
    /// A file is not what its name says.
    #[error("{file}: {problem}")]
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

    pub(super) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
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
    let shown: Vec<String> = problems.iter().take(SHOWN).map(ToString::to_string).collect();
    let rest = problems.len().saturating_sub(SHOWN);
    let tail = if rest == 0 { String::new() } else { format!("; and {rest} more") };
    format!("{}{tail}", shown.join("; "))
}
