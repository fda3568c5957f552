//! Text to token ids and back, over a byte-level `tokenizer.json`.
//!
//! Two tokenizers come from one file. The plain one has no added tokens and encodes what comes from outside; the full
//! one encodes raw prompts of the completions route, where the client is meant to spell control tokens itself.

use flashlane::checkpoint::ModelConfig;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::layout::Piece;
use super::{Control, Utf8Stream};

/// Ids that a table is made for; no model has nearly as many.
const MAX_VOCAB: usize = 1 << 24;

#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("tokenizer.json: {0}")]
    Format(String),
    #[error(
        "tokenizer.json: the control token {spelling} ({control:?}) is missing; expected a DeepSeek-V4 tokenizer"
    )]
    MissingControl { control: Control, spelling: &'static str },
    #[error("tokenizer.json: decoder: expected ByteLevel, found {found}")]
    NotByteLevel { found: String },
    #[error(
        "tokenizer.json: added token {token:?}: the file says id {expected}, its place in the vocabulary gives {found}"
    )]
    WrongId { token: String, expected: u64, found: u32 },
    #[error("tokenizer.json: vocabulary: token {id} ({token:?}) is not spelled in byte-level characters")]
    BadSpelling { id: u32, token: String },
    #[error(
        "tokenizer.json: vocabulary: token {token:?} has id {id}, but config.json has a vocab_size of {vocab_size}"
    )]
    BeyondVocabulary { id: u32, token: String, vocab_size: usize },
    #[error(
        "tokenizer.json: the control token {control:?} has id {found}, but config.json has {key} {expected}"
    )]
    OtherControl { control: Control, found: u32, key: &'static str, expected: u32 },
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error("the prompt has at least {at_least} tokens, more than the {limit} allowed")]
    TooLong { at_least: usize, limit: usize },
    #[error("the text cannot be encoded: {0}")]
    Text(String),
}

/// What a token id stands for in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol<'a> {
    Text(&'a [u8]),
    Control(Control),
    /// A special token without text, or an id without a token.
    Silent,
}

#[derive(Debug)]
struct Entry {
    bytes: Box<[u8]>,
    special: bool,
}

#[derive(Debug)]
pub struct ChatTokenizer {
    full: Tokenizer,
    plain: Tokenizer,
    entries: Vec<Option<Entry>>,
    controls: Vec<(Control, u32)>,
}

impl ChatTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// A sentence when the file is no tokenizer, not byte-level, or lacks a control token.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        let format = |error: &dyn std::fmt::Display| TokenizerError::Format(error.to_string());
        let mut file: Value = serde_json::from_slice(json).map_err(|e| format(&e))?;
        check_decoder(&file["decoder"])?;
        // Truncation and padding would change prompts silently; a post-processor would add tokens.
        for field in ["truncation", "padding", "post_processor"] {
            file[field] = Value::Null;
        }
        let full = load(&file)?;
        check_added_ids(&file["added_tokens"], &full)?;
        file["added_tokens"] = Value::Array(Vec::new());
        let plain = load(&file)?;
        let controls = Control::ALL
            .into_iter()
            .map(|control| {
                let spelling = control.spelling();
                let id = full.token_to_id(spelling);
                id.map(|id| (control, id)).ok_or(TokenizerError::MissingControl { control, spelling })
            })
            .collect::<Result<_, _>>()?;
        let entries = entries(&full)?;
        Ok(Self { full, plain, entries, controls })
    }

    /// As [`from_bytes`](Self::from_bytes), for a model of this configuration.
    ///
    /// # Errors
    /// Also when an id is none of the model's vocabulary, or the two disagree where a text begins or ends.
    pub fn for_model(json: &[u8], config: &ModelConfig) -> Result<Self, TokenizerError> {
        let tokenizer = Self::from_bytes(json)?;
        let largest = tokenizer.full.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
        if let Some((token, id)) = largest.filter(|(_, id)| *id as usize >= config.vocab_size) {
            return Err(TokenizerError::BeyondVocabulary { id, token, vocab_size: config.vocab_size });
        }
        let ends = [
            (Control::Bos, "bos_token_id", config.bos_token_id),
            (Control::Eos, "eos_token_id", config.eos_token_id),
        ];
        for (control, key, expected) in ends {
            let found = tokenizer.id(control);
            if found != expected {
                return Err(TokenizerError::OtherControl { control, found, key, expected });
            }
        }
        Ok(tokenizer)
    }

    pub fn id(&self, control: Control) -> u32 {
        // The constructor found every control token.
        self.controls.iter().find(|(c, _)| *c == control).map_or(u32::MAX, |(_, id)| *id)
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.entries.len()
    }

    pub fn symbol(&self, id: u32) -> Symbol<'_> {
        if let Some((control, _)) = self.controls.iter().find(|(_, i)| *i == id) {
            return Symbol::Control(*control);
        }
        match self.entries.get(id as usize) {
            Some(Some(entry)) if !entry.special => Symbol::Text(&entry.bytes),
            _ => Symbol::Silent,
        }
    }

    /// The bytes that a token spells, control tokens included; special ones spell nothing.
    pub fn visible_bytes(&self, id: u32) -> &[u8] {
        match self.entries.get(id as usize) {
            Some(Some(entry)) if !entry.special => &entry.bytes,
            _ => &[],
        }
    }

    /// The bytes of any token, for log-probability tables.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.entries.get(id as usize).and_then(Option::as_ref).map_or(&[], |entry| &entry.bytes)
    }

    /// Encodes a rendered conversation, stopping once `limit` tokens are passed.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] with the count so far, or the tokenizer's own words.
    pub fn encode(&self, pieces: &[Piece], limit: usize) -> Result<Vec<u32>, EncodeError> {
        let mut ids = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Control(control) => ids.push(self.id(*control)),
                Piece::Text(text) => self.append(text, limit, &mut ids)?,
            }
            check_length(ids.len(), limit)?;
        }
        Ok(ids)
    }

    /// Encodes a raw prompt in which spelled control tokens count.
    ///
    /// # Errors
    /// As [`ChatTokenizer::encode`].
    pub fn encode_raw(&self, text: &str, limit: usize) -> Result<Vec<u32>, EncodeError> {
        check_prefix(&self.full, text, limit, 0)?;
        let mut ids = encode_with(&self.full, text)?;
        if ids.first() != Some(&self.id(Control::Bos)) {
            ids.insert(0, self.id(Control::Bos));
        }
        check_length(ids.len(), limit)?;
        Ok(ids)
    }

    fn append(&self, text: &str, limit: usize, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        check_prefix(&self.plain, text, limit, ids.len())?;
        let new = encode_with(&self.plain, text)?;
        // A vocabulary that holds a control token as an ordinary entry could still form it.
        if new.iter().any(|id| matches!(self.symbol(*id), Symbol::Control(_))) {
            return Err(EncodeError::Text("ordinary text forms a control token of this vocabulary".into()));
        }
        ids.extend(new);
        Ok(())
    }

    /// Decodes a whole sequence, control tokens as spelled.
    pub fn decode(&self, ids: &[u32]) -> String {
        let (mut stream, mut out) = (Utf8Stream::default(), String::new());
        for id in ids {
            stream.push(self.visible_bytes(*id), &mut out);
        }
        stream.finish(&mut out);
        out
    }
}

fn check_length(at_least: usize, limit: usize) -> Result<(), EncodeError> {
    if at_least > limit { Err(EncodeError::TooLong { at_least, limit }) } else { Ok(()) }
}

/// Refuses a hopelessly long text after encoding a small part of it: a megabyte must not cost a second of a core when
/// the context is small.
fn check_prefix(tokenizer: &Tokenizer, text: &str, limit: usize, before: usize) -> Result<(), EncodeError> {
    const BYTES_PER_TOKEN: usize = 16;
    /// Tokens at the cut that the whole text might have merged differently.
    const SLACK: usize = 64;
    let cut = text.floor_char_boundary_at((limit + SLACK) * BYTES_PER_TOKEN);
    if cut == text.len() {
        return Ok(());
    }
    let count = before + encode_with(tokenizer, &text[..cut])?.len();
    if count > limit + SLACK { Err(EncodeError::TooLong { at_least: count - SLACK, limit }) } else { Ok(()) }
}

trait FloorCharBoundary {
    fn floor_char_boundary_at(&self, at: usize) -> usize;
}

impl FloorCharBoundary for str {
    fn floor_char_boundary_at(&self, at: usize) -> usize {
        (0..=at.min(self.len())).rev().find(|i| self.is_char_boundary(*i)).unwrap_or(0)
    }
}

fn encode_with(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, EncodeError> {
    let encoding = tokenizer.encode_fast(text, false).map_err(|e| EncodeError::Text(e.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

fn load(file: &Value) -> Result<Tokenizer, TokenizerError> {
    let bytes = serde_json::to_vec(file).map_err(|e| TokenizerError::Format(e.to_string()))?;
    Tokenizer::from_bytes(bytes).map_err(|e| TokenizerError::Format(e.to_string()))
}

fn check_decoder(decoder: &Value) -> Result<(), TokenizerError> {
    let found = decoder["type"].as_str().unwrap_or("none");
    if found == "ByteLevel" { Ok(()) } else { Err(TokenizerError::NotByteLevel { found: found.to_owned() }) }
}

/// The library numbers added tokens itself and only logs when the file disagrees.
fn check_added_ids(added: &Value, full: &Tokenizer) -> Result<(), TokenizerError> {
    for entry in added.as_array().into_iter().flatten() {
        let (Some(token), Some(expected)) = (entry["content"].as_str(), entry["id"].as_u64()) else {
            continue;
        };
        match full.token_to_id(token) {
            Some(found) if u64::from(found) != expected => {
                return Err(TokenizerError::WrongId { token: token.to_owned(), expected, found });
            }
            _ => {}
        }
    }
    Ok(())
}

fn entries(full: &Tokenizer) -> Result<Vec<Option<Entry>>, TokenizerError> {
    let added = full.get_added_tokens_decoder();
    let byte_of = byte_level_alphabet();
    let vocab = full.get_vocab(true);
    let size = vocab.values().max().map_or(0, |max| *max as usize + 1);
    if size > MAX_VOCAB {
        return Err(TokenizerError::Format(format!(
            "vocabulary: the largest id is {}, expected one below {MAX_VOCAB}",
            size - 1
        )));
    }
    let mut entries: Vec<Option<Entry>> = std::iter::repeat_with(|| None).take(size).collect();
    for (token, id) in vocab {
        let entry = match added.get(&id) {
            Some(added) => Entry { bytes: added.content.as_bytes().into(), special: added.special },
            None => {
                let bytes: Option<Box<[u8]>> = token.chars().map(&byte_of).collect();
                let bytes = bytes.ok_or(TokenizerError::BadSpelling { id, token })?;
                Entry { bytes, special: false }
            }
        };
        entries[id as usize] = Some(entry);
    }
    Ok(entries)
}

/// The inverse of the byte-level alphabet: printable Latin-1 stands for itself, the other bytes, in order, for the
/// characters from U+0100 on.
fn byte_level_alphabet() -> impl Fn(char) -> Option<u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let shifted: Vec<u8> = (0..=255).filter(|b| !printable(*b)).collect();
    move |c| match u32::from(c) {
        code @ 0..=255 => u8::try_from(code).ok().filter(|b| printable(*b)),
        code => shifted.get(code as usize - 256).copied(),
    }
}
