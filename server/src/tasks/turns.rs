//! Single questions and their answers: the turns that conversations are made of.

use fastrand::Rng;

use super::conversation::{Class, Conversation, Role, SpanKind, Word};
use super::lexicon::Ids;
use super::wording as say;
use super::world::{Fact, KeyKind, World, pick, spelled};

/// Asks for the value of a known fact. The user turn is already open.
pub fn recall(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng, fact: usize) {
    let fact = &mut world.facts[fact];
    ask_for(conv, rng, fact.kind, &fact.key);
    conv.reply(say::THINK_LOOK_UP, &[&fact.key.spaced]);
    fact_answer(conv, fact, SpanKind::Recall);
    conv.end_reply();
}

fn fact_answer(conv: &mut Conversation<'_>, fact: &mut Fact, kind: SpanKind) {
    let start = conv.len();
    conv.answer(&fact.value.plain, kind, fact.seen);
    fact.seen = Some(start);
}

fn ask_for(conv: &mut Conversation<'_>, rng: &mut Rng, kind: KeyKind, key: &Word) {
    let forms = if kind == KeyKind::Name { say::CODE_QUESTIONS } else { say::VALUE_QUESTIONS };
    let form = if rng.f32() < 0.4 { 0 } else { rng.usize(0..forms.len()) };
    let plain = forms[form].starts_with("{}");
    conv.fill(forms[form], &[if plain { &key.plain } else { &key.spaced }]);
    conv.close();
}

/// Asks for a key that the text never mentions.
pub fn unknown(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng) {
    let kind = if rng.f32() < 0.6 { KeyKind::Name } else { KeyKind::Spelled };
    let key = world.fresh_key(conv.lexicon, rng, kind);
    ask_for(conv, rng, kind, &key);
    conv.reply(say::THINK_LOOK_UP, &[&key.spaced]);
    conv.answer(&conv.lexicon.template(say::UNKNOWN)[0], SpanKind::Unknown, None);
    conv.end_reply();
}

/// Asks where a box leads: the answer names that box, then its code. False if there is no pointer.
pub fn trail(conv: &mut Conversation<'_>, world: &mut World, rng: &mut Rng) -> bool {
    let Some(pointer) = rng.choice(&mut world.pointers) else { return false };
    let fact = &mut world.facts[pointer.target];
    let forms = say::TRAIL_QUESTIONS;
    conv.fill(forms[rng.usize(0..forms.len())], &[&pointer.key.spaced]);
    conv.close();
    conv.reply(say::THINK_LOOK_UP, &[&pointer.key.spaced]);
    let start = conv.len();
    conv.answer(&fact.key.plain, SpanKind::Trail, Some(pointer.seen));
    pointer.seen = start;
    conv.push(&conv.lexicon.template(say::TRAIL_ANSWER)[1], Class::Frame);
    fact_answer(conv, fact, SpanKind::Trail);
    conv.end_reply();
    true
}

/// Asks to repeat a secret, some words, or words that the vocabulary lacks.
pub fn echo(conv: &mut Conversation<'_>, world: &World, rng: &mut Rng) {
    let word = echo_word(conv, world, rng);
    let form = rng.usize(0..say::ECHOES.len());
    conv.fill(say::ECHOES[form], &[&word.spaced]);
    let source = conv.len() - word.plain.len();
    conv.close();
    conv.reply(say::THINK_REPEAT, &[]);
    conv.answer(&word.plain, SpanKind::Echo, Some(source));
    conv.end_reply();
}

fn echo_word(conv: &Conversation<'_>, world: &World, rng: &mut Rng) -> Word {
    let lexicon = conv.lexicon;
    match rng.usize(0..4) {
        0 => {
            let count = rng.usize(5..10);
            super::world::word_of(lexicon, spelled(rng, &lexicon.pools.letters, count))
        }
        1 => words(conv, rng),
        _ => world.secret(lexicon, rng),
    }
}

/// One to five words, the first an adjective.
pub fn words(conv: &Conversation<'_>, rng: &mut Rng) -> Word {
    let pools = &conv.lexicon.pools;
    let first = rng.usize(0..pools.adjectives.len());
    let mut rest: Ids = Vec::new();
    for _ in 0..rng.usize(0..5) {
        let pool = [&pools.filler, &pools.nouns, &pools.adjectives, &pools.keywords][rng.usize(0..4)];
        rest.extend(pick(rng, pool));
    }
    // `and` separates the arguments of a request.
    rest.retain(|id| !conv.lexicon.template(say::AND)[0].contains(id));
    let with = |id: u16| std::iter::once(id).chain(rest.iter().copied()).collect();
    Word { plain: with(pools.first_adjectives[first]), spaced: with(pools.adjectives[first]) }
}

/// Asks what the filler of the whole conversation is about. False if it does not lean clearly.
pub fn topic(conv: &mut Conversation<'_>, world: &World, rng: &mut Rng) -> bool {
    let Some(topic) = world.topic() else { return false };
    conv.fill(say::TOPIC_QUESTIONS[rng.usize(0..say::TOPIC_QUESTIONS.len())], &[]);
    conv.close();
    conv.reply(say::THINK_TOPIC, &[]);
    conv.answer(&conv.lexicon.pools.topic_names[topic], SpanKind::Topic, None);
    conv.end_reply();
    true
}

/// A question about the model and its server.
pub fn chat(conv: &mut Conversation<'_>, rng: &mut Rng) {
    let lexicon = conv.lexicon;
    let Some(intent) = rng.choice(&lexicon.chat) else { return };
    let Some(wording) = rng.choice(&intent.wordings) else { return };
    reply_about(conv, wording, &intent.answer, say::THINK_ME, SpanKind::Chat);
}

/// A question nobody can foresee: one of the file's, or random words behind a question word.
pub fn fallback(conv: &mut Conversation<'_>, rng: &mut Rng) {
    let lexicon = conv.lexicon;
    let mut question = rng.choice(&lexicon.fallback.wordings).cloned().unwrap_or_default();
    if rng.f32() < 0.7 {
        let start = rng.choice(say::QUESTION_STARTS).copied().unwrap_or_default();
        question.clone_from(&lexicon.template(start)[0]);
        for _ in 0..rng.usize(1..7) {
            question.extend(odd_word(conv, rng));
        }
        if rng.f32() < 0.7 {
            question.push(lexicon.question_mark);
        }
    }
    reply_about(conv, &question, &lexicon.fallback.answer, say::THINK_ME, SpanKind::Chat);
}

fn odd_word(conv: &Conversation<'_>, rng: &mut Rng) -> Ids {
    let pools = &conv.lexicon.pools;
    if rng.f32() < 0.25 {
        let count = rng.usize(5..9);
        return super::world::word_of(conv.lexicon, spelled(rng, &pools.letters, count)).spaced;
    }
    let topic = rng.usize(0..4);
    let pool = [&pools.filler, &pools.nouns, &pools.adjectives, &pools.topics[topic]][rng.usize(0..4)];
    pick(rng, pool).into_iter().collect()
}

/// One to three sentences of random words, spelled ones and symbols among them.
pub fn odd_text(conv: &mut Conversation<'_>, rng: &mut Rng) {
    let pools = &conv.lexicon.pools;
    for _ in 0..rng.usize(1..=3) {
        conv.fill(rng.choice(say::ODD_STARTS).copied().unwrap_or_default(), &[]);
        for _ in 0..rng.usize(1..=8) {
            let word = match rng.usize(0..10) {
                0 | 1 => {
                    let count = rng.usize(3..10);
                    super::world::word_of(conv.lexicon, spelled(rng, &pools.letters, count)).spaced
                }
                2 => {
                    let count = rng.usize(1..4);
                    super::world::secret_word(conv.lexicon, rng, count).spaced
                }
                3 | 4 => pick(rng, &pools.nouns).into_iter().collect(),
                5 => pick(rng, &pools.adjectives).into_iter().collect(),
                _ => pick(rng, &pools.filler).into_iter().collect(),
            };
            conv.push(&word, Class::Other);
        }
        conv.push(&[conv.lexicon.stop, conv.lexicon.newline], Class::Other);
    }
}

/// Any question under the rule of the system prompt.
pub fn ruled(conv: &mut Conversation<'_>, rng: &mut Rng, word: &[u16]) {
    let lexicon = conv.lexicon;
    let Some(intent) = rng.choice(&lexicon.chat) else { return };
    let Some(wording) = rng.choice(&intent.wordings) else { return };
    reply_about(conv, wording, word, say::THINK_RULE, SpanKind::Rule);
}

pub fn reply_about(
    conv: &mut Conversation<'_>,
    question: &[u16],
    answer: &[u16],
    reason: &str,
    kind: SpanKind,
) {
    conv.push(question, Class::Other);
    conv.close();
    conv.reply(reason, &[]);
    conv.answer(answer, kind, None);
    conv.end_reply();
}

/// Opens a user turn.
pub fn user(conv: &mut Conversation<'_>) {
    conv.open(Role::User);
}
