//! Markup: what a sentinel opens, closes, or turns out not to be.

use super::{Loose, Parser, Place, TagReader};
use crate::chat::Control;
use crate::dsml::Output;
use crate::dsml::call::Call;
use crate::dsml::tag::{self, Reading, Tag};

impl Parser {
    pub(super) fn sentinel(&mut self) {
        self.interrupt_tag();
        let (lead, closing) = match (self.held.strip_suffix("</"), self.held.strip_suffix('<')) {
            (Some(lead), _) => (lead.to_owned(), true),
            (None, Some(lead)) => (lead.to_owned(), false),
            (None, None) => return self.stray_sentinel(),
        };
        if self.place == Place::Value && !closing {
            // No markup opens inside a value: the model writes about it.
            self.release();
            return self.emit(Control::Dsml.spelling());
        }
        self.held.clear();
        self.tag = Some(TagReader { closing, lead, text: String::new() });
    }

    fn stray_sentinel(&mut self) {
        if self.place == Place::Value {
            self.release();
            self.emit(Control::Dsml.spelling());
        } else {
            self.counters.malformed_calls += 1;
        }
    }

    /// A control token ends whatever tag was being read; a marker at its end belongs to the control token.
    pub(super) fn interrupt_tag(&mut self) {
        let Some(mut tag) = self.tag.take() else { return };
        let body = tag.text.trim_end_matches(['<', '/']).len();
        let marker = tag.text.split_off(body);
        let reading = tag.read(true);
        self.tag = Some(tag);
        self.judge(reading);
        self.held.push_str(&marker);
    }

    pub(super) fn judge(&mut self, reading: Reading) {
        match reading {
            Reading::Partial => {}
            Reading::Whole(kind) => {
                if let Some(tag) = self.tag.take() {
                    if tag.closing { self.closed(&kind) } else { self.opened(kind, &tag) }
                }
            }
            Reading::Junk => {
                if let Some(tag) = self.tag.take() {
                    self.junk(&tag);
                }
            }
        }
    }

    /// The text behind a sentinel is no markup: it is text without the sentinel, or part of a value.
    fn junk(&mut self, tag: &TagReader) {
        self.counters.malformed_calls += u64::from(self.place != Place::Value);
        self.emit(&tag.lead);
        self.emit(tag.marker());
        if self.place == Place::Value {
            self.emit(Control::Dsml.spelling());
        }
        for c in tag.text.chars() {
            self.char(c);
        }
    }

    fn opened(&mut self, kind: Tag, tag: &TagReader) {
        match (self.place, kind) {
            (Place::Reasoning | Place::Content, Tag::Wrapper) => self.enter_block(),
            (Place::Reasoning | Place::Content, Tag::Invoke { name, empty }) => {
                if !self.tools.declares(&name) {
                    return self.junk(tag);
                }
                let raw = format!("{}{}{}", tag.lead, tag.marker(), tag.text);
                self.loose = Some(Loose { origin: self.place, raw });
                self.open_call(name, empty);
            }
            (Place::Block, Tag::Invoke { name, empty }) => self.open_call(name, empty),
            (Place::Call, Tag::Invoke { name, empty }) => {
                self.counters.malformed_calls += 1;
                self.close_call();
                self.open_call(name, empty);
            }
            (Place::Call, Tag::Parameter { key, string }) => {
                if let Some(call) = &mut self.call {
                    call.open_parameter(key, string, &self.tools, &mut self.pending);
                }
                self.forward();
                self.place = Place::Value;
            }
            (Place::Block | Place::Call, Tag::Wrapper) => {}
            _ => self.counters.malformed_calls += 1,
        }
    }

    fn closed(&mut self, kind: &Tag) {
        if self.place == Place::Value {
            if let Some(call) = &mut self.call {
                call.close_parameter(&self.tools, &mut self.pending);
            }
            self.forward();
            self.place = Place::Call;
        }
        match (self.place, kind) {
            (Place::Call, Tag::Invoke { .. }) => self.close_call(),
            (Place::Call, Tag::Wrapper) => {
                self.counters.malformed_calls += 1;
                self.close_call();
                self.leave_block();
            }
            (Place::Block, Tag::Wrapper) => self.leave_block(),
            (Place::Reasoning | Place::Content, _) => {
                self.counters.malformed_calls += u64::from(!self.after_block);
            }
            _ => {}
        }
    }

    fn enter_block(&mut self) {
        self.counters.implicit_think_end += u64::from(self.place == Place::Reasoning);
        self.place = Place::Block;
    }

    fn leave_block(&mut self) {
        self.enter(Place::Content);
        self.after_block = true;
    }

    fn open_call(&mut self, name: String, empty: bool) {
        self.place = Place::Call;
        self.call = Some(Call::new(name, self.ending.calls));
        if empty {
            self.close_call();
        }
    }

    fn close_call(&mut self) {
        let Some(mut call) = self.call.take() else { return };
        call.close(&self.tools, &mut self.pending);
        self.counters.malformed_calls += call.malformed;
        self.counters.unknown_tool += u64::from(!self.tools.declares(&call.name));
        match self.loose.take() {
            Some(loose) => {
                self.counters.implicit_think_end += u64::from(loose.origin == Place::Reasoning);
                self.leave_block();
            }
            None => self.place = Place::Block,
        }
        self.ending.calls += usize::from(!self.tools.is_empty());
        self.forward();
    }

    /// Hands on what the open call has produced, once it is sure to be a call. Without declared tools the client cannot
    /// run any.
    pub(super) fn forward(&mut self) {
        if self.tools.is_empty() {
            self.pending.clear();
        } else if self.loose.is_none() {
            for output in self.pending.drain(..) {
                match (self.out.last_mut(), output) {
                    (Some(Output::Arguments { fragment: last, .. }), Output::Arguments { fragment, .. }) => {
                        last.push_str(&fragment);
                    }
                    (_, output) => self.out.push(output),
                }
            }
        }
    }

    pub(super) fn end_tag(&mut self) {
        let Some(tag) = self.tag.take() else { return };
        if self.place == Place::Value && tag.closing {
            self.closed(&Tag::Parameter { key: String::new(), string: true });
        } else if !tag.closing {
            self.counters.malformed_calls += 1;
        }
    }

    pub(super) fn end_call(&mut self) {
        let Some(mut call) = self.call.take() else { return };
        self.counters.malformed_calls += 1;
        if let Some(loose) = self.loose.take() {
            self.pending.clear();
            self.held.clear();
            self.place = loose.origin;
            return self.emit_section(&loose.raw);
        }
        self.ending.cut = call.cut(&mut self.pending) && !self.tools.is_empty();
        self.forward();
    }
}

impl TagReader {
    fn marker(&self) -> &'static str {
        if self.closing { "</" } else { "<" }
    }

    pub(super) fn read(&self, ended: bool) -> Reading {
        if self.closing { tag::closing(&self.text, ended) } else { tag::opening(&self.text, ended) }
    }
}
