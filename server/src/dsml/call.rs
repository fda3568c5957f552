//! One tool call while the model writes it: parameters in, argument fragments out.

use super::arguments::Arguments;
use super::schema::ToolSchemas;
use super::{Output, values};

/// Names that models wrap a whole arguments object in.
const ENVELOPES: [&str; 2] = ["arguments", "input"];

#[derive(Debug)]
pub(super) struct Call {
    pub name: String,
    index: usize,
    started: bool,
    arguments: Arguments,
    parameter: Option<Parameter>,
    /// A body that is one JSON object instead of parameters.
    body: String,
    /// Text that is no JSON object stood where a body could begin.
    body_refused: bool,
    /// The first parameter, if it looks like an envelope: the inner object and the value as it stands.
    envelope: Option<Envelope>,
    /// Bodies and values that had to be repaired.
    pub malformed: u64,
}

#[derive(Debug)]
struct Parameter {
    key: String,
    string: bool,
    /// Known only as a whole: JSON, and what may be an envelope.
    buffered: bool,
    text: String,
}

#[derive(Debug)]
struct Envelope {
    key: String,
    inner: String,
    value: String,
}

impl Call {
    pub(super) fn new(name: String, index: usize) -> Self {
        Self {
            name,
            index,
            started: false,
            arguments: Arguments::default(),
            parameter: None,
            body: String::new(),
            body_refused: false,
            envelope: None,
            malformed: 0,
        }
    }

    /// Text between parameters.
    pub(super) fn body_text(&mut self, text: &str) {
        for c in text.chars() {
            let begins = c == '{' && !self.body_refused;
            if begins || !self.body.is_empty() {
                self.body.push(c);
            } else if !c.is_whitespace() {
                self.body_refused = true;
            }
        }
    }

    pub(super) fn open_parameter(
        &mut self,
        key: String,
        string: bool,
        schemas: &ToolSchemas,
        out: &mut Vec<Output>,
    ) {
        self.settle_envelope(out);
        let may_wrap = self.arguments.is_empty()
            && ENVELOPES.contains(&key.as_str())
            && schemas.declares(&self.name)
            && !schemas.has_parameter(&self.name, &key);
        let buffered = !string || may_wrap;
        if !buffered {
            let fragment = self.arguments.open_string(&key);
            self.send(fragment, out);
        }
        self.body_refused = true;
        self.parameter = Some(Parameter { key, string, buffered, text: String::new() });
    }

    pub(super) fn value_text(&mut self, text: &str, out: &mut Vec<Output>) {
        match &mut self.parameter {
            Some(parameter) if parameter.buffered => parameter.text.push_str(text),
            Some(_) => self.send(values::escape(text), out),
            None => {}
        }
    }

    pub(super) fn close_parameter(&mut self, schemas: &ToolSchemas, out: &mut Vec<Output>) {
        let Some(Parameter { key, string, buffered, text }) = self.parameter.take() else { return };
        if !buffered {
            let quote = self.arguments.close_string().unwrap_or_default().to_owned();
            return self.send(quote, out);
        }
        let (value, repaired) = if string {
            (values::json_string(&text), false)
        } else {
            values::json_value(&text, schemas, &self.name, &key)
        };
        let declared = |inner: &str| schemas.has_parameter(&self.name, inner);
        let unwraps = ENVELOPES.contains(&key.as_str())
            && self.arguments.is_empty()
            && !declared(&key)
            && values::json_object(&text)
                .is_some_and(|object| !object.is_empty() && object.keys().all(|inner| declared(inner)));
        if unwraps {
            self.envelope = Some(Envelope { key, inner: text.trim().to_owned(), value });
            return;
        }
        self.malformed += u64::from(repaired);
        let fragment = self.arguments.key(&key) + &value;
        self.send(fragment, out);
    }

    /// Completes the arguments and ends the call.
    pub(super) fn close(&mut self, schemas: &ToolSchemas, out: &mut Vec<Output>) {
        self.close_parameter(schemas, out);
        let rest = match self.envelope.take() {
            Some(envelope) => envelope.inner,
            None if self.arguments.is_empty() && !self.body.is_empty() => self.whole_body(),
            None => self.arguments.close(),
        };
        self.send(rest, out);
        out.push(Output::CallEnd { index: self.index, repeated_key: self.arguments.repeated_key });
    }

    /// The output ended inside the call. Returns whether the client has seen any of it; then its arguments are closed
    /// so that they parse.
    pub(super) fn cut(&mut self, out: &mut Vec<Output>) -> bool {
        self.parameter = self.parameter.take().filter(|parameter| !parameter.buffered);
        self.settle_envelope(out);
        if self.started {
            let rest = self.arguments.close();
            self.send(rest, out);
        }
        self.started
    }

    fn whole_body(&mut self) -> String {
        let body = std::mem::take(&mut self.body);
        let body = body.trim();
        if values::is_json(body) && values::json_object(body).is_some() {
            return body.to_owned();
        }
        self.malformed += 1;
        let object = self.arguments.key(ENVELOPES[0]) + &values::json_string(body);
        object + "}"
    }

    /// Another parameter follows, so the first one was no envelope.
    fn settle_envelope(&mut self, out: &mut Vec<Output>) {
        if let Some(envelope) = self.envelope.take() {
            let fragment = self.arguments.key(&envelope.key) + &envelope.value;
            self.send(fragment, out);
        }
    }

    fn send(&mut self, fragment: String, out: &mut Vec<Output>) {
        if !std::mem::replace(&mut self.started, true) {
            out.push(Output::CallStart { index: self.index, name: self.name.clone() });
        }
        match out.last_mut() {
            Some(Output::Arguments { fragment: last, .. }) => last.push_str(&fragment),
            _ => out.push(Output::Arguments { index: self.index, fragment }),
        }
    }
}
