//! The tokens that structure a conversation, by their spelling in `tokenizer.json`.

/// A token that is structure and not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control {
    Bos,
    Eos,
    User,
    Assistant,
    ThinkStart,
    ThinkEnd,
    /// The sentinel that, preceded by `<` or `</`, announces tool-call markup.
    Dsml,
}

impl Control {
    pub const ALL: [Self; 7] =
        [Self::Bos, Self::Eos, Self::User, Self::Assistant, Self::ThinkStart, Self::ThinkEnd, Self::Dsml];

    pub fn spelling(self) -> &'static str {
        match self {
            Self::Bos => "<｜begin▁of▁sentence｜>",
            Self::Eos => "<｜end▁of▁sentence｜>",
            Self::User => "<｜User｜>",
            Self::Assistant => "<｜Assistant｜>",
            Self::ThinkStart => "<think>",
            Self::ThinkEnd => "</think>",
            Self::Dsml => "｜DSML｜",
        }
    }
}
