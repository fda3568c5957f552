//! Faults that are put into a running engine on purpose, to see who notices.

use std::fmt;
use std::str::FromStr;

use super::pools::Role;

/// What a fault hits: its *items*.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A full page of the cache between two steps: its rows are moved on by one.
    Page,
    /// A byte of a full page between two steps: one bit is turned.
    Byte,
    /// A row that the step has just stored: its bytes are turned round, which leaves numbers finite. An owner's own wrong
    /// row.
    Row,
    /// A selected row index, between `topk` and attention: replaced by one that was not selected.
    Index,
    /// A score, between `index_logits` and `topk`: exchanged with another row's.
    Score,
}

impl FaultKind {
    pub const ALL: [Self; 5] = [Self::Page, Self::Byte, Self::Row, Self::Index, Self::Score];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Byte => "byte",
            Self::Row => "row",
            Self::Index => "index",
            Self::Score => "score",
        }
    }

    /// Happens while a step runs, and not between two.
    #[must_use]
    pub const fn inside(self) -> bool {
        matches!(self, Self::Index | Self::Score)
    }
}

/// Which faults, where and how often. Written `KIND[:KEY=VALUE,…]`.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Fault {
    pub kind: FaultKind,
    /// `None`: every layer that has such items.
    pub layer: Option<usize>,
    /// Number of the step, from 1; `None`: every step.
    pub step: Option<u64>,
    /// Of `page`, `byte` and `row`; `None`: every pool.
    pub pool: Option<Role>,
    /// Each item is hit with this probability; `None`: one item of each step, and for `index` and `score` of each layer.
    pub rate: Option<f64>,
    pub seed: u64,
}

impl Fault {
    #[must_use]
    pub const fn new(kind: FaultKind) -> Self {
        Self { kind, layer: None, step: None, pool: None, rate: None, seed: 0 }
    }

    /// Whether the fault may strike in this layer.
    #[must_use]
    pub fn hits(&self, layer: usize) -> bool {
        self.layer.is_none_or(|l| l == layer)
    }
}

/// What the command line says of [`Fault`].
pub const SPEC: &str = "KIND[:KEY=VALUE,...]\n\
    kinds: page   a full cache page between two steps\n\
    \x20      byte   a bit of a full cache page between two steps\n\
    \x20      row    a cache row that the step has just stored\n\
    \x20      index  a selected row, between top-k and attention\n\
    \x20      score  an indexer score, before top-k\n\
    keys:  layer=N  only there        step=N  only in this step, counted from 1\n\
    \x20      pool=window|rows|index     of page, byte and row\n\
    \x20      rate=Q   each page, byte, row, index or score with probability Q; without it one a step\n\
    \x20      seed=N   of the draws";

/// A fault that cannot be read, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let found = FaultKind::ALL.into_iter().find(|k| k.name() == kind);
        let names = FaultKind::ALL.map(FaultKind::name).join(", ");
        let kind =
            found.ok_or_else(|| FaultError(format!("kind: expected one of {names}, found {kind:?}")))?;
        let mut fault = Self::new(kind);
        for pair in rest.split(',').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(FaultError(format!("expected KEY=VALUE, found {pair:?}")));
            };
            fault.set(key, value)?;
        }
        Ok(fault)
    }
}

impl Fault {
    fn set(&mut self, key: &str, value: &str) -> Result<(), FaultError> {
        match key {
            "layer" => self.layer = Some(number(key, value)?),
            "step" => self.step = Some(number(key, value)?),
            "seed" => self.seed = number(key, value)?,
            "rate" => {
                let rate: f64 = number(key, value)?;
                if !(rate > 0.0 && rate <= 1.0) {
                    return Err(FaultError(format!("rate: expected above 0 and at most 1, found {value}")));
                }
                self.rate = Some(rate);
            }
            "pool" if self.kind.inside() => {
                let kind = self.kind.name();
                return Err(FaultError(format!(
                    "pool: {kind} faults are in no pool; page, byte and row have one"
                )));
            }
            "pool" => {
                let role = Role::ALL.into_iter().find(|r| r.name() == value);
                let wrong = || FaultError(format!("pool: expected window, rows or index, found {value:?}"));
                self.pool = Some(role.ok_or_else(wrong)?);
            }
            _ => {
                let known = "expected layer, step, pool, rate or seed";
                return Err(FaultError(format!("{known}, found the key {key:?}")));
            }
        }
        Ok(())
    }
}

fn number<N: FromStr>(key: &str, value: &str) -> Result<N, FaultError> {
    value.parse().map_err(|_| FaultError(format!("{key}: expected a number, found {value:?}")))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, layer, step, pool, rate, seed } = self;
        write!(f, "{}:seed={seed}", kind.name())?;
        layer.map_or(Ok(()), |layer| write!(f, ",layer={layer}"))?;
        step.map_or(Ok(()), |step| write!(f, ",step={step}"))?;
        pool.map_or(Ok(()), |pool| write!(f, ",pool={}", pool.name()))?;
        rate.map_or(Ok(()), |rate| write!(f, ",rate={rate}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let fault = Fault {
            layer: Some(2),
            step: Some(40),
            pool: Some(Role::Index),
            rate: Some(0.25),
            seed: 9,
            ..Fault::new(FaultKind::Row)
        };
        assert_eq!(fault.to_string().parse(), Ok(fault));
        for kind in FaultKind::ALL {
            assert_eq!(kind.name().parse(), Ok(Fault::new(kind)));
            assert!(SPEC.contains(kind.name()));
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, words) in [
            ("", "kind: expected one of page, byte, row, index, score, found \"\""),
            ("rows", "kind: expected one of"),
            ("page:layer", "expected KEY=VALUE, found \"layer\""),
            ("page:layer=x", "layer: expected a number, found \"x\""),
            ("page:layer=-1", "layer: expected a number, found \"-1\""),
            ("index:rate=0", "rate: expected above 0 and at most 1, found 0"),
            ("index:rate=nan", "rate: expected above 0 and at most 1, found nan"),
            ("index:pool=rows", "pool: index faults are in no pool"),
            ("page:pool=keys", "pool: expected window, rows or index, found \"keys\""),
            ("page:often=1", "expected layer, step, pool, rate or seed, found the key \"often\""),
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
