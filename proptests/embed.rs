//! `embed`: a copy, so exact on every executor.

use flashlane::ops::{Carry, Embed, Op};
use proptest::prelude::*;

use crate::support::{Case, Draw, Dtype, Stored, Value, config};

pub(crate) const VOCAB: usize = 7;

pub(crate) struct Built {
    pub(crate) case: Case,
    out: Value,
    ids: Value,
}

/// Requests of `per_request` rows; `slots[r]` is the state slot of request `r` in a carry of these cells.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) per_request: usize,
    pub(crate) positions: Vec<i32>,
    pub(crate) token: Vec<i32>,
    pub(crate) slots: Vec<i32>,
    pub(crate) carried: Vec<i32>,
}

impl Rows {
    /// The token of row `t` by the definition.
    fn token(&self, t: usize) -> Option<usize> {
        let position = usize::try_from(self.positions[t]).ok()?;
        let token = match self.token[t] {
            -1 => {
                let slot = usize::try_from(self.slots[t / self.per_request]).ok()?;
                *self.carried.get(2 * slot..2 * slot + 2)?.get(position % 2)?
            }
            given => given,
        };
        usize::try_from(token).ok().filter(|&id| id < VOCAB)
    }

    pub(crate) fn build(&self, table: &[f32], streams: usize, dtype: Dtype) -> Built {
        let mut case = Case::new();
        let (hidden, rows) = (table.len() / VOCAB, self.positions.len());
        let tokens = case.tokens(self.per_request, &self.positions);
        let token = case.ints("token", &self.token);
        let slot = case.ints("state_slot", &self.slots);
        let cells: Vec<f32> = self.carried.iter().map(|&id| f32::from_bits(id.cast_unsigned())).collect();
        let state = case.state("carry", &cells);
        case.unread_except(state, &self.read());
        let carry = Carry { state, slots: self.carried.len() / 2, slot };
        let weight = case.weight("weight", VOCAB, hidden, Stored::Bf16(table.to_vec()));
        let out = case.out("out", dtype, rows * streams * hidden);
        let ids = case.out("ids", Dtype::I32, rows);
        case.op(Op::Embed(Embed { tokens, token, carry, weight, out, ids, vocab: VOCAB, hidden, streams }));
        Built { case, out, ids }
    }

    /// The cells that may be read.
    fn read(&self) -> Vec<std::ops::Range<usize>> {
        let cell = |t: usize| {
            let (slot, position) = (self.slots[t / self.per_request], self.positions[t]);
            let cell = usize::try_from(slot).ok()? * 2 + usize::try_from(position).ok()? % 2;
            (self.token[t] == -1 && cell < self.carried.len()).then_some(cell * 4..(cell + 1) * 4)
        };
        (0..self.positions.len()).filter_map(cell).collect()
    }
}

#[test]
fn q13_tokens_outside_the_vocabulary_and_padding_give_zeros() {
    let table: Vec<f32> = (1..=14).map(|i| i as f32).collect();
    let rows = Rows {
        per_request: 1,
        positions: vec![0, 1, 2, 3, 4, 5, -1, -1],
        token: vec![2, -2, 7, i32::MAX, i32::MIN, 6, 3, -1],
        slots: vec![0; 8],
        carried: vec![1, 1],
    };
    let built = rows.build(&table, 2, Dtype::F32);
    for found in built.case.run().all {
        let rows: Vec<Vec<f64>> = found.real(&built.out).chunks(4).map(<[f64]>::to_vec).collect();
        assert_eq!(rows[0], [5.0, 6.0, 5.0, 6.0], "{}", found.executor);
        assert_eq!(rows[5], [13.0, 14.0, 13.0, 14.0], "{}", found.executor);
        for t in [1, 2, 3, 4, 6, 7] {
            assert_eq!(rows[t], [0.0; 4], "{}: row {t}", found.executor);
        }
        assert_eq!(found.ints(&built.ids), [2, -1, -1, -1, -1, 6, -1, -1], "{}", found.executor);
    }
}

/// The cell is that of the slot and of the position's parity; slots outside the carry, and what the carry holds outside the
/// vocabulary, give no token.
#[test]
fn q13_a_carried_token_is_checked_as_a_given_one() {
    let table: Vec<f32> = (1..=14).map(|i| i as f32).collect();
    let rows = Rows {
        per_request: 1,
        positions: vec![4, 5, 4, 5, 8, 9, 0, 1, 2],
        token: vec![-1, -1, -1, -1, -1, -1, -1, -1, 5],
        slots: vec![0, 0, 2, 2, 1, 1, 3, -1, i32::MAX],
        carried: vec![3, 4, 7, -1, 0, 6],
    };
    let built = rows.build(&table, 1, Dtype::F32);
    let runs = built.case.run();
    runs.agree_exactly(built.out.buffer);
    runs.agree_exactly(built.ids.buffer);
    assert_eq!(runs.oracle().ints(&built.ids), [3, 4, 0, 6, -1, -1, -1, -1, 5]);
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn is_the_oracles(
        seed: u64, requests in 1usize..5, per_request in 1usize..4, hidden in 1usize..70, streams in 1usize..5, bf16: bool,
    ) {
        let mut draw = Draw::new(seed);
        let table = draw.exact(VOCAB * hidden, 1.0);
        let mut ints = |n: usize, below: usize, from: i32| -> Vec<i32> {
            (0..n).map(|_| i32::try_from(draw.below(below)).unwrap() + from).collect()
        };
        let rows = Rows {
            per_request,
            positions: ints(requests * per_request, 4, -1),
            token: ints(requests * per_request, VOCAB + 3, -2),
            slots: ints(requests, 5, -1),
            carried: ints(6, VOCAB + 2, -1),
        };
        let dtype = if bf16 { Dtype::Bf16 } else { Dtype::F32 };
        let built = rows.build(&table, streams, dtype);
        let runs = built.case.run();
        runs.agree_exactly(built.out.buffer);
        runs.agree_exactly(built.ids.buffer);
        for (i, v) in runs.oracle().real(&built.out).iter().enumerate() {
            let (t, column) = (i / (streams * hidden), i % hidden);
            let id = rows.token(t);
            prop_assert_eq!(*v, id.map_or(0.0, |id| f64::from(table[id * hidden + column])));
            let expected = id.map_or(-1, |id| i32::try_from(id).unwrap());
            prop_assert_eq!(runs.oracle().ints(&built.ids)[t], expected);
        }
    }
}
