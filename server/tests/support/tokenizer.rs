//! A byte-level tokenizer without merges: one token a byte, the control tokens, and one long token.

use flashlane_server::chat::{ChatTokenizer, Control};
use serde_json::{Map, Value, json};

/// A token of 4096 bytes that no text encodes to. Bytes are their own ids.
pub const LONG: u32 = 256;
/// Control tokens follow the vocabulary, in the order of [`Control::ALL`].
const CONTROLS: u32 = 257;

pub fn control(control: Control) -> u32 {
    (CONTROLS..).zip(Control::ALL).find(|(_, known)| *known == control).unwrap().0
}

fn special(control: Control) -> bool {
    matches!(control, Control::Bos | Control::Eos)
}

/// `tokenizer.json`.
pub fn json() -> Value {
    let mut vocab = Map::new();
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut shifted = 256..;
    for byte in 0..256 {
        let code = if printable(byte) { byte } else { shifted.next().unwrap() };
        vocab.insert(char::from_u32(code).unwrap().to_string(), json!(byte));
    }
    vocab.insert("x".repeat(4096), json!(LONG));
    let added: Vec<Value> = (CONTROLS..)
        .zip(Control::ALL)
        .map(|(id, control)| {
            json!({
                "id": id, "content": control.spelling(), "special": special(control), "normalized": !special(control),
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [],
        },
    })
}

pub fn tokenizer() -> ChatTokenizer {
    ChatTokenizer::from_bytes(json().to_string().as_bytes()).unwrap()
}

/// The ids of an output in short notation: `¦` sentinel, `¤` think, `§` end of thinking, `¶` end of turn.
pub fn ids(text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    for c in text.chars() {
        let special = match c {
            '¦' => Some(Control::Dsml),
            '¤' => Some(Control::ThinkStart),
            '§' => Some(Control::ThinkEnd),
            '¶' => Some(Control::Eos),
            _ => None,
        };
        match special {
            Some(special) => ids.push(control(special)),
            None => ids.extend(c.encode_utf8(&mut [0; 4]).bytes().map(u32::from)),
        }
    }
    ids
}
