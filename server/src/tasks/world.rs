//! What a conversation's text claims: facts, pointers and the topic of its filler.
//!
//! It writes facts and filler into the conversation and remembers where each value was last seen, so that an answer knows its
//! retrieval distance. It asks nothing.

use fastrand::Rng;

use super::conversation::{Class, Conversation, Word};
use super::lexicon::{Ids, Lexicon};
use super::wording as say;

/// A fact further back than this is out of the sliding window.
const FAR: usize = 140;
/// The topic of a text is asked only after this many topic words.
const MIN_TOPIC_WORDS: u32 = 70;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// An adjective and a noun, both words of the vocabulary.
    Name,
    /// A few capitals and digits, spelled.
    Spelled,
}

#[derive(Clone, Debug)]
pub struct Fact {
    pub kind: KeyKind,
    pub key: Word,
    pub value: Word,
    /// Where the value was last written; none if the text never said it.
    pub seen: Option<usize>,
}

#[derive(Clone, Debug)]
pub struct Pointer {
    pub key: Word,
    pub target: usize,
    pub seen: usize,
}

#[derive(Clone, Debug)]
pub struct World {
    pub facts: Vec<Fact>,
    pub pointers: Vec<Pointer>,
    keys: Vec<Ids>,
    topic_words: [u32; 4],
    leading: [usize; 2],
    lead: f32,
    /// Lengths of secrets and of spelled keys.
    pub secret_len: (usize, usize),
    pub near_ties: f32,
    /// Facts about boxes stand in running text.
    inline: bool,
}

pub fn pick<T: Copy>(rng: &mut Rng, items: &[T]) -> Option<T> {
    rng.choice(items.iter().copied())
}

/// `count` symbols of `alphabet`.
pub fn spelled(rng: &mut Rng, alphabet: &[u16], count: usize) -> Ids {
    (0..count).filter_map(|_| pick(rng, alphabet)).collect()
}

pub fn secret_word(lexicon: &Lexicon, rng: &mut Rng, count: usize) -> Word {
    word_of(lexicon, spelled(rng, &lexicon.pools.secret, count))
}

/// Spelled ids take a space token when they follow a word.
pub fn word_of(lexicon: &Lexicon, plain: Ids) -> Word {
    let spaced = std::iter::once(lexicon.space).chain(plain.iter().copied()).collect();
    Word { plain, spaced }
}

fn name_word(lexicon: &Lexicon, adjective: usize, noun: usize) -> Word {
    let pools = &lexicon.pools;
    let noun = pools.nouns[noun];
    Word {
        plain: vec![pools.first_adjectives[adjective], noun],
        spaced: vec![pools.adjectives[adjective], noun],
    }
}

impl World {
    pub fn new(rng: &mut Rng) -> Self {
        let first = rng.usize(0..4);
        Self {
            facts: Vec::new(),
            pointers: Vec::new(),
            keys: Vec::new(),
            topic_words: [0; 4],
            leading: [first, (first + rng.usize(1..4)) % 4],
            lead: 0.56 + 0.2 * rng.f32(),
            secret_len: (4, 8),
            near_ties: 0.15,
            inline: rng.f32() < 0.12,
        }
    }

    pub fn secret(&self, lexicon: &Lexicon, rng: &mut Rng) -> Word {
        let count = rng.usize(self.secret_len.0..=self.secret_len.1);
        secret_word(lexicon, rng, count)
    }

    /// A key that the text has not used, now and then one step away from a key it has.
    pub fn fresh_key(&mut self, lexicon: &Lexicon, rng: &mut Rng, kind: KeyKind) -> Word {
        for _ in 0..50 {
            let near = (rng.f32() < self.near_ties).then(|| rng.choice(&self.facts)).flatten();
            let word = match (kind, near.filter(|fact| fact.kind == kind)) {
                (KeyKind::Name, near) => near_name(lexicon, rng, near),
                (KeyKind::Spelled, Some(near)) => {
                    let mut plain = near.key.plain.clone();
                    let at = rng.usize(0..plain.len());
                    plain[at] = pick(rng, &lexicon.pools.secret).unwrap_or(plain[at]);
                    word_of(lexicon, plain)
                }
                (KeyKind::Spelled, None) => {
                    let count = rng.usize(2..=4);
                    secret_word(lexicon, rng, count)
                }
            };
            if !self.keys.contains(&word.plain) {
                self.keys.push(word.plain.clone());
                return word;
            }
        }
        secret_word(lexicon, rng, 5)
    }

    /// States a new fact.
    pub fn state_fact(&mut self, conv: &mut Conversation<'_>, rng: &mut Rng, kind: KeyKind) -> usize {
        let key = self.fresh_key(conv.lexicon, rng, kind);
        let value = self.secret(conv.lexicon, rng);
        self.facts.push(Fact { kind, key, value, seen: None });
        let fact = self.facts.len() - 1;
        self.write_fact(conv, rng, fact);
        fact
    }

    /// Gives a known key a new value: the latest one counts.
    pub fn restate_fact(&mut self, conv: &mut Conversation<'_>, rng: &mut Rng) {
        if let Some(fact) = self.known(rng) {
            self.facts[fact].value = self.secret(conv.lexicon, rng);
            self.write_fact(conv, rng, fact);
        }
    }

    fn write_fact(&mut self, conv: &mut Conversation<'_>, rng: &mut Rng, fact: usize) {
        let fact = &mut self.facts[fact];
        let Word { plain, spaced } = &fact.value;
        let start = conv.len();
        match fact.kind {
            KeyKind::Spelled => conv.fill(say::KEY_FACT, &[&fact.key.plain, plain]),
            KeyKind::Name if self.inline => {
                let form = say::INLINE_FACTS[rng.usize(0..say::INLINE_FACTS.len())];
                conv.fill(form, &[&fact.key.spaced, if form.contains(":{}") { plain } else { spaced }]);
            }
            KeyKind::Name if rng.f32() < 0.2 => conv.fill(say::FIRST_NAME_FACT, &[&fact.key.plain, plain]),
            KeyKind::Name => {
                let form = if rng.f32() < 0.5 { 0 } else { rng.usize(0..say::NAME_FACTS.len()) };
                conv.fill(say::NAME_FACTS[form], &[&fact.key.spaced, if form == 0 { plain } else { spaced }]);
            }
        }
        let written = &conv.ids[start..];
        let offset = written.windows(plain.len()).rposition(|window| window == plain.as_slice());
        fact.seen = offset.map(|offset| start + offset);
    }

    /// Ends a line of facts in running text.
    pub fn end_inline(&self, conv: &mut Conversation<'_>) {
        if self.inline {
            conv.push(&[conv.lexicon.newline], Class::Other);
        }
    }

    /// States that a new box leads to a known one.
    pub fn state_pointer(&mut self, conv: &mut Conversation<'_>, rng: &mut Rng) {
        let Some(target) = self.known_name(rng) else { return };
        let key = self.fresh_key(conv.lexicon, rng, KeyKind::Name);
        conv.fill(say::POINTER_FACT, &[&key.spaced, &self.facts[target].key.spaced]);
        let seen = conv.len() - self.facts[target].key.spaced.len() - 1;
        self.pointers.push(Pointer { key, target, seen });
    }

    fn known(&self, rng: &mut Rng) -> Option<usize> {
        let known: Vec<usize> = (0..self.facts.len()).filter(|&i| self.facts[i].seen.is_some()).collect();
        pick(rng, &known)
    }

    pub fn known_name(&self, rng: &mut Rng) -> Option<usize> {
        let known = |&i: &usize| self.facts[i].seen.is_some() && self.facts[i].kind == KeyKind::Name;
        let names: Vec<usize> = (0..self.facts.len()).filter(known).collect();
        pick(rng, &names)
    }

    /// A known fact among the last `recent` ones that lies beyond the window, if there is one and `far` says so.
    pub fn pick_fact(
        &self,
        conv: &Conversation<'_>,
        rng: &mut Rng,
        recent: usize,
        far: f32,
        names_only: bool,
    ) -> Option<usize> {
        let first = self.facts.len().saturating_sub(recent);
        let known = |&i: &usize| {
            let fact = &self.facts[i];
            fact.seen.is_some() && (!names_only || fact.kind == KeyKind::Name)
        };
        let all: Vec<usize> = (first..self.facts.len()).filter(known).collect();
        if rng.f32() < far {
            let beyond = |&i: &usize| self.facts[i].seen.is_some_and(|seen| conv.len() > seen + FAR);
            let beyond: Vec<usize> = all.iter().copied().filter(beyond).collect();
            if let Some(fact) = pick(rng, &beyond) {
                return Some(fact);
            }
        }
        pick(rng, &all)
    }

    /// About `tokens` tokens of paragraphs. Each keeps to one topic, and one of two topics has more paragraphs than the other: only
    /// a count over the whole text tells which.
    pub fn filler(&mut self, conv: &mut Conversation<'_>, rng: &mut Rng, tokens: usize) {
        let end = conv.len() + tokens;
        while conv.len() + 4 < end {
            let paragraph = end.min(conv.len() + rng.usize(40..120));
            let topic = self.leading[usize::from(rng.f32() > self.lead)];
            while conv.len() + 4 < paragraph {
                let words = rng.usize(3..12).min(paragraph - conv.len() - 3);
                self.sentence(conv, rng, words, topic);
            }
        }
    }

    fn sentence(&mut self, conv: &mut Conversation<'_>, rng: &mut Rng, words: usize, topic: usize) {
        let pools = &conv.lexicon.pools;
        let mut ids = spelled(rng, &pools.first_adjectives, 1);
        for _ in 0..words {
            let draw = rng.f32();
            let pool = if draw < 0.45 {
                let topic = if rng.f32() < 0.85 { topic } else { rng.usize(0..4) };
                self.topic_words[topic] += 1;
                &pools.topics[topic]
            } else if draw < 0.88 {
                &pools.filler
            } else if draw < 0.94 {
                &pools.adjectives
            } else {
                &pools.nouns
            };
            ids.extend(pick(rng, pool));
        }
        ids.extend([conv.lexicon.stop, conv.lexicon.newline]);
        conv.push(&ids, Class::Other);
    }

    /// The topic, where the counts so far leave no doubt: a quarter more words than any other.
    pub fn topic(&self) -> Option<usize> {
        let total: u32 = self.topic_words.iter().sum();
        let topic = (0..4).max_by_key(|&topic| self.topic_words[topic])?;
        let clear =
            |other: usize| other == topic || self.topic_words[topic] * 4 >= self.topic_words[other] * 5;
        (total >= MIN_TOPIC_WORDS && (0..4).all(clear)).then_some(topic)
    }
}

fn near_name(lexicon: &Lexicon, rng: &mut Rng, near: Option<&Fact>) -> Word {
    let pools = &lexicon.pools;
    let (mut adjective, mut noun) = (rng.usize(0..pools.adjectives.len()), rng.usize(0..pools.nouns.len()));
    if let Some(near) = near {
        let at = |pool: &[u16], id: u16| pool.iter().position(|&other| other == id);
        match rng.bool() {
            true => adjective = at(&pools.adjectives, near.key.spaced[0]).unwrap_or(adjective),
            false => noun = at(&pools.nouns, near.key.spaced[1]).unwrap_or(noun),
        }
    }
    name_word(lexicon, adjective, noun)
}
