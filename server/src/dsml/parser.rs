//! The state machine.
//!
//! At most `\n*</` of text is held back, because the sentinel that follows would make it part of the markup; any other
//! character releases it.

mod markup;

use super::call::Call;
use super::schema::ToolSchemas;
use super::{Counters, Output};
use crate::chat::{Control, Opening};

/// What the client allows and where the output begins.
#[derive(Clone, Debug)]
pub struct Config {
    pub start: Start,
    pub tools: ToolSchemas,
}

/// Where the prompt left off.
pub type Start = Opening;

/// Which text the parser is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    Reasoning,
    Content,
    /// Inside a tool block, or behind the end.
    Markup,
}

/// What was seen when the output ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Calls that were completed.
    pub calls: usize,
    /// The client saw the beginning of a call that never ended.
    pub cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Reasoning,
    Content,
    Block,
    Call,
    Value,
    Done,
}

/// Text behind a sentinel, until it is known what it is.
#[derive(Debug)]
struct TagReader {
    closing: bool,
    /// Newlines before the marker: dropped with it, or text after all.
    lead: String,
    text: String,
}

/// A call outside of any block: a call only if it closes, otherwise text.
#[derive(Debug)]
struct Loose {
    origin: Place,
    raw: String,
}

#[derive(Debug)]
pub struct Parser {
    tools: ToolSchemas,
    place: Place,
    held: String,
    tag: Option<TagReader>,
    call: Option<Call>,
    loose: Option<Loose>,
    /// Outputs of the open call that the client must not see yet.
    pending: Vec<Output>,
    /// No text of this section yet: leading newlines are dropped.
    leading: bool,
    after_block: bool,
    ending: Ending,
    counters: Counters,
    out: Vec<Output>,
}

impl Parser {
    pub fn new(config: Config) -> Self {
        let (place, name) = match config.start {
            Start::Reasoning => (Place::Reasoning, None),
            Start::Content | Start::Continuation => (Place::Content, None),
            Start::Block => (Place::Block, None),
            Start::Call(ref name) => (Place::Call, Some(name.clone())),
        };
        Self {
            tools: config.tools,
            place,
            held: String::new(),
            tag: None,
            call: name.map(|name| Call::new(name, 0)),
            loose: None,
            pending: Vec::new(),
            leading: config.start != Start::Continuation,
            after_block: false,
            ending: Ending::default(),
            counters: Counters::default(),
            out: Vec::new(),
        }
    }

    pub fn section(&self) -> Section {
        match self.place {
            Place::Reasoning if self.tag.is_none() => Section::Reasoning,
            Place::Content if self.tag.is_none() => Section::Content,
            _ => Section::Markup,
        }
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What became certain since the last call.
    pub fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    /// Text that ordinary tokens spell.
    pub fn text(&mut self, text: &str) {
        for c in text.chars() {
            if let Some(loose) = &mut self.loose {
                loose.raw.push(c);
            }
            self.char(c);
        }
    }

    pub fn control(&mut self, control: Control) {
        if self.place == Place::Done {
            return;
        }
        match control {
            Control::Dsml => self.sentinel(),
            Control::ThinkStart | Control::ThinkEnd => {
                self.interrupt_tag();
                self.think(control);
            }
            Control::Eos => {
                self.finish();
            }
            Control::Bos | Control::User | Control::Assistant => {}
        }
    }

    /// Ends the output. Idempotent.
    pub fn finish(&mut self) -> Ending {
        if self.place != Place::Done {
            self.end_tag();
            self.end_call();
            if matches!(self.place, Place::Reasoning | Place::Content) && !self.held.is_empty() {
                self.release();
                self.counters.held_flush += u64::from(!self.leading);
            }
            self.counters.implicit_think_end += u64::from(self.place == Place::Reasoning);
            self.place = Place::Done;
        }
        self.ending
    }

    fn char(&mut self, c: char) {
        if let Some(tag) = &mut self.tag {
            tag.text.push(c);
            let reading = tag.read(false);
            return self.judge(reading);
        }
        let newlines_count = matches!(self.place, Place::Reasoning | Place::Content);
        let continues = match c {
            '\n' => newlines_count && !self.held.contains('<'),
            '<' => !self.held.contains('<'),
            '/' => self.held.ends_with('<'),
            _ => false,
        };
        if continues {
            return self.held.push(c);
        }
        self.release();
        if c == '<' || (c == '\n' && newlines_count) {
            self.held.push(c);
        } else {
            self.emit(c.encode_utf8(&mut [0; 4]));
        }
    }

    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.emit(&held);
    }

    /// Text that is no marker goes where the parser is.
    fn emit(&mut self, text: &str) {
        match self.place {
            Place::Reasoning | Place::Content => self.emit_section(text),
            Place::Block | Place::Done => {}
            Place::Call => {
                if let Some(call) = &mut self.call {
                    call.body_text(text);
                }
            }
            Place::Value => {
                if let Some(call) = &mut self.call {
                    call.value_text(text, &mut self.pending);
                    self.forward();
                }
            }
        }
    }

    fn emit_section(&mut self, text: &str) {
        let text = match (self.leading, self.after_block) {
            (false, _) => text,
            (true, false) => text.trim_start_matches('\n'),
            (true, true) => text.trim_start(),
        };
        if text.is_empty() {
            return;
        }
        self.leading = false;
        self.counters.text_after_block += u64::from(std::mem::take(&mut self.after_block));
        match (self.place, self.out.last_mut()) {
            (Place::Reasoning, Some(Output::Reasoning(last)))
            | (Place::Content, Some(Output::Content(last))) => {
                last.push_str(text);
            }
            (Place::Reasoning, _) => self.out.push(Output::Reasoning(text.to_owned())),
            _ => self.out.push(Output::Content(text.to_owned())),
        }
    }

    fn think(&mut self, control: Control) {
        match (self.place, control) {
            (Place::Reasoning, Control::ThinkEnd) => {
                if self.held.contains('<') {
                    self.release();
                }
                self.enter(Place::Content);
            }
            // The model opens its reasoning itself.
            (Place::Content, Control::ThinkStart) if self.leading && !self.after_block => {
                self.enter(Place::Reasoning);
            }
            (Place::Value, _) => {
                self.release();
                self.emit(control.spelling());
            }
            _ => {}
        }
    }

    fn enter(&mut self, section: Place) {
        self.place = section;
        self.held.clear();
        self.leading = true;
    }
}
