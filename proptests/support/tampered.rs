//! Checkpoints that were tampered with, and what must hold of them. Shared with the fuzz target.

use std::sync::OnceLock;

use flashlane::checkpoint::{Checkpoint, CheckpointError, specs, synthetic};
use serde_json::Value;

/// The bytes of a whole small checkpoint.
#[derive(Debug)]
pub(crate) struct Small {
    pub(crate) config: Vec<u8>,
    pub(crate) file: Vec<u8>,
    /// Bytes of the file before its data.
    pub(crate) header: usize,
}

pub(crate) fn small() -> &'static Small {
    static SMALL: OnceLock<Small> = OnceLock::new();
    SMALL.get_or_init(|| {
        let config = synthetic::tiny_config();
        let file = synthetic::safetensors(&config, 1).unwrap();
        let header = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        Small { config: Value::Object(config.to_json()).to_string().into_bytes(), file, header }
    })
}

/// Whole, or an error in words; never a panic, never a part of a checkpoint.
pub(crate) fn judge(config: &[u8], file: Vec<u8>) -> Result<(), CheckpointError> {
    let opened = Checkpoint::from_bytes(config, file);
    if let Err(error) = &opened {
        assert!(error.to_string().len() > 10, "{error:?}");
    }
    opened.map(|c| assert_eq!(c.items.len(), specs(&c.config).len()))
}

/// The property on what `input` makes of the small checkpoint. Its first byte says how the rest is taken: as the configuration, as
/// the header with its true or a claimed length, as edits of the header or of the configuration, or as the whole file.
pub(crate) fn check(input: &[u8]) {
    let Some((way, rest)) = input.split_first() else { return };
    let Small { config, file, header } = small();
    let data = &file[*header..];
    let with_header = |length: u64, text: &[u8], data: &[u8]| [&length.to_le_bytes(), text, data].concat();
    // An error is as good as a checkpoint here: `judge` itself holds both to what they must be.
    let _ = match way % 6 {
        0 => judge(rest, file.clone()),
        1 => judge(config, with_header(rest.len() as u64, rest, data)),
        2 => {
            let (length, text) = rest.split_at(rest.len().min(8));
            let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            judge(config, with_header(length, text, &[]))
        }
        3 => judge(config, [&edited(&file[..*header], rest), data].concat()),
        4 => judge(&edited(config, rest), file.clone()),
        _ => judge(config, rest.to_vec()),
    };
}

/// `bytes` after edits of four bytes each: where (two), how many bytes go, and what comes there.
fn edited(bytes: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for &[low, high, cut, byte] in edits.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len().max(1);
        let end = (at + usize::from(cut % 8)).min(bytes.len());
        bytes.splice(at..end, [byte]);
    }
    bytes
}
