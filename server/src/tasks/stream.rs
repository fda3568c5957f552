//! Training records, written to standard output as fast as the trainer reads them.
//!
//! A record is `ctx + 1` ids (i16, little endian) and `ctx + 1` loss classes (u8). Each worker owns a seed; records arrive in the
//! workers' order of finishing, so the order is not reproducible with more than one thread.

use std::io::Write;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use fastrand::Rng;

use super::conversation::{Class, Conversation};
use super::lexicon::{Lexicon, PAD};
use super::session::{Profile, profile, sequence};

/// Records a worker hands over at once.
const BATCH: usize = 16;

/// Writes records until `count` are out (without end if 0) or the reader closes the pipe.
pub(super) fn run(
    lexicon: &Lexicon,
    stage: usize,
    ctx: usize,
    seed: u64,
    threads: usize,
    count: usize,
) -> Result<()> {
    let profile = profile(stage);
    let (sender, receiver) = sync_channel::<Vec<u8>>(2 * threads.max(1));
    thread::scope(|scope| {
        for worker in 0..threads.max(1) {
            let (sender, profile) = (sender.clone(), &profile);
            let rng = Rng::with_seed(seed.wrapping_add(worker as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            scope.spawn(move || produce(lexicon, rng, profile, ctx, &sender));
        }
        drop(sender);
        let mut out = std::io::stdout().lock();
        let mut written = 0;
        for batch in &receiver {
            match out.write_all(&batch) {
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => break,
                other => other.context("writing training records")?,
            }
            written += BATCH;
            if count > 0 && written >= count {
                break;
            }
        }
        drop(receiver);
        Ok(())
    })
}

fn produce(lexicon: &Lexicon, mut rng: Rng, profile: &Profile, ctx: usize, sender: &SyncSender<Vec<u8>>) {
    loop {
        let mut batch = Vec::with_capacity(BATCH * (ctx + 1) * 3);
        for _ in 0..BATCH {
            record(&sequence(lexicon, &mut rng, profile, ctx + 1), ctx + 1, &mut batch);
        }
        if sender.send(batch).is_err() {
            return;
        }
    }
}

fn record(conv: &Conversation<'_>, length: usize, out: &mut Vec<u8>) {
    let used = conv.len().min(length);
    out.extend(conv.ids[..used].iter().flat_map(|id| id.to_le_bytes()));
    out.extend(std::iter::repeat_n(PAD.to_le_bytes(), length - used).flatten());
    out.extend(&conv.classes[..used]);
    out.extend(std::iter::repeat_n(Class::Pad as u8, length - used));
}
