//! What an operation takes and gives, as data: the help is printed from it, and the input is checked against it.

use anyhow::bail;
use flashlane::ops::{Op, Value};

use super::bind::Bound;

/// The type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// BF16 or F32, the same for all activations of a call; BF16 on a GPU.
    Activation,
    F32,
    I32,
    /// I64 or U64.
    Seed,
    /// A frozen vector or table of F32.
    Floats,
    /// A matrix in BF16, F32, NVFP4 or MXFP4; not F32 on a GPU.
    Weight,
    /// Index keys or queries `[.., 128]` in F32, stored in the call's format.
    Index,
}

impl Kind {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Activation => "BF16 or F32",
            Self::F32 | Self::Floats | Self::Index => "F32",
            Self::I32 => "I32",
            Self::Seed => "I64 or U64",
            Self::Weight => "BF16, F32, or U8 codes with scales",
        }
    }
}

/// A dimension: a number, a name that the first tensor with it fixes, or a name times or over a number.
pub(super) type Dim = &'static str;

#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) dims: &'static [Dim],
    /// The number that fills it when the file has no such tensor.
    pub(super) default: Option<Fill>,
    pub(super) about: &'static str,
}

/// What an absent operand holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    Number(f32),
    /// Positions from which all rows of this dimension are visible.
    Visible(Dim),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) default: Option<f32>,
    pub(super) about: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Spec {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) inputs: &'static [Operand],
    pub(super) params: &'static [Param],
    pub(super) outputs: &'static [Operand],
    /// The operation over operands that are bound.
    pub(super) op: fn(&mut Bound) -> anyhow::Result<Op>,
}

/// A required operand.
pub(super) const fn needs(
    name: &'static str,
    kind: Kind,
    dims: &'static [Dim],
    about: &'static str,
) -> Operand {
    Operand { name, kind, dims, default: None, about }
}

/// An operand that may be left out.
pub(super) const fn may(
    name: &'static str,
    kind: Kind,
    dims: &'static [Dim],
    fill: Fill,
    about: &'static str,
) -> Operand {
    Operand { name, kind, dims, default: Some(fill), about }
}

pub(super) const fn param(name: &'static str, default: f32, about: &'static str) -> Param {
    Param { name, default: Some(default), about }
}

pub(super) const fn required(name: &'static str, about: &'static str) -> Param {
    Param { name, default: None, about }
}

impl Spec {
    /// The parameters of `given` as numbers, defaults where there is none.
    ///
    /// # Errors
    /// An unknown name, a value that is no number, or a missing one.
    pub(super) fn parameters(&self, given: &[(String, String)]) -> anyhow::Result<Vec<(&'static str, f32)>> {
        if let Some((name, _)) = given.iter().find(|(n, _)| self.params.iter().all(|p| p.name != n)) {
            let known: Vec<&str> = self.params.iter().map(|p| p.name).collect();
            bail!("--param {name}: {} takes {}", self.name, list(&known));
        }
        let one = |p: &Param| match given.iter().rfind(|(name, _)| name == p.name) {
            Some((name, text)) => match text.parse::<f32>() {
                Ok(value) if value.is_finite() => Ok((p.name, value)),
                _ => bail!("--param {name}: expected a number, found {text:?}"),
            },
            None => match p.default {
                Some(value) => Ok((p.name, value)),
                None => bail!("{} needs --param {}=..., {}", self.name, p.name, p.about),
            },
        };
        self.params.iter().map(one).collect()
    }
}

/// Words for a list of names.
pub(super) fn list(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A value that the specification promises to be there.
pub(super) fn value(bound: &Bound, name: &str) -> anyhow::Result<Value> {
    match bound.values.get(name) {
        Some(value) => Ok(*value),
        None => bail!("operand {name} is not bound"),
    }
}
