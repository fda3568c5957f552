//! `embed`: token ids to residual streams.

use flashlane::checkpoint::WeightFormat;
use flashlane::ops::{Carry, Embed, Op};

use crate::bench::{At, Bench};
use crate::support::{Case, Dtype};

pub(crate) fn benches(at: At) -> Vec<Bench> {
    let (vocab, hidden) = at.pick((768, 256), (8192, 4096));
    [1, 64].map(|rows| bench(rows, vocab, hidden)).into()
}

fn bench(rows: usize, vocab: usize, hidden: usize) -> Bench {
    let streams = 4;
    let build = move |rows, copies| {
        let mut case = Case::new();
        let weight = case.noise_matrix("weight", WeightFormat::Bf16, vocab, hidden);
        for copy in 0..copies {
            let tokens = case.rows_at(rows, 5);
            let ids: Vec<i32> = (0..rows).map(|t| ((copy * rows + t) * 7919 % vocab) as i32).collect();
            let token = case.ints("token", &ids);
            let slot = case.ints("state_slot", &vec![0; rows]);
            let carry = Carry { state: case.state("carry", &[0.0; 2]), slots: 1, slot };
            let out = case.out("out", Dtype::Bf16, rows * streams * hidden);
            let ids = case.out("ids", Dtype::I32, rows);
            case.op(Op::Embed(Embed { tokens, token, carry, weight, out, ids, vocab, hidden, streams }));
        }
        case
    };
    Bench::over("embed", format!("{rows} rows"), rows, build).moves(rows * 2 * (1 + streams) * hidden, 0)
}
