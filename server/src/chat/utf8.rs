//! Incremental UTF-8: token bytes in, whole characters out.
//!
//! Byte-level tokens cut characters anywhere. A sequence that can still become a character is held back; one that
//! cannot becomes U+FFFD, so what comes out is always text.

/// Holds the (at most three) bytes of a character that is not complete yet.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Appends the characters that `bytes` completes to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            start += chunk.valid().len();
            let invalid = chunk.invalid();
            if start + invalid.len() == self.pending.len() && may_continue(invalid) {
                break;
            }
            if !invalid.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
                start += invalid.len();
            }
        }
        self.pending.drain(..start);
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Whether more bytes could turn `tail` into a character.
fn may_continue(tail: &[u8]) -> bool {
    matches!(std::str::from_utf8(tail), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::Utf8Stream;

    fn decode(chunks: &[&[u8]]) -> String {
        let (mut stream, mut out) = (Utf8Stream::default(), String::new());
        for chunk in chunks {
            stream.push(chunk, &mut out);
        }
        stream.finish(&mut out);
        out
    }

    #[test]
    fn every_cut_of_valid_text_gives_the_text() {
        let text = "aé漢🦀 e\u{301}";
        for cut in 0..=text.len() {
            let (a, b) = text.as_bytes().split_at(cut);
            assert_eq!(decode(&[a, b]), text, "cut at {cut}");
        }
    }

    #[test]
    fn invalid_bytes_become_replacement_characters_for_every_cut() {
        let bytes = b"a\xffb\xe6\xbcz\xf0\x9f\xa6";
        let whole = String::from_utf8_lossy(bytes);
        for cut in 0..=bytes.len() {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(decode(&[a, b]), whole, "cut at {cut}");
        }
    }
}
