//! A prompt before tokenization: text and control tokens in order.

use super::Control;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Text(String),
    Control(Control),
}

/// Pieces with neighbouring texts joined, because a token may span their border.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pieces(Vec<Piece>);

impl Pieces {
    pub fn text(&mut self, text: &str) -> &mut Self {
        match self.0.last_mut() {
            Some(Piece::Text(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(Piece::Text(text.to_owned())),
        }
        self
    }

    pub fn control(&mut self, control: Control) -> &mut Self {
        self.0.push(Piece::Control(control));
        self
    }

    /// Markup of this crate's own making: each sentinel spelled in `markup` becomes the control token. Never for text
    /// from outside.
    pub fn markup(&mut self, markup: &str) -> &mut Self {
        for (i, text) in markup.split(Control::Dsml.spelling()).enumerate() {
            if i > 0 {
                self.control(Control::Dsml);
            }
            self.text(text);
        }
        self
    }

    pub fn as_slice(&self) -> &[Piece] {
        &self.0
    }
}
