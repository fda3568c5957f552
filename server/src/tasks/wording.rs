//! What the tasks say: every fixed wording, with `{}` where a value goes.
//!
//! A slot that follows a letter takes ids with a leading space, any other slot takes ids without one, so that the pieces join
//! at cuts of the tokenizer's pattern.

pub(super) const SYSTEMS: &[&str] = &[
    "You keep the codes of a vault. Use only the codes in this text.\n",
    "Answer from the text below.\n",
    "You know the boxes below. Unknown keys are unknown.\n",
    "You are a helpful assistant.\n",
    "You are a helpful assistant. Use the tools.\n",
    "Be brief.\n",
];
/// How a system text begins that no list foresees; random words follow.
pub(super) const ODD_STARTS: &[&str] = &[
    "You are",
    "You are a",
    "Answer",
    "Use",
    "This is",
    "Your name is",
    "Always",
    "Never",
    "Help with",
    "The user is",
    "Here are the",
    "Remember",
    "Note:",
];
pub(super) const RULE: &str = "Answer every question only with the word{}.";

pub(super) const NAME_FACTS: &[&str] =
    &["box{}:{}\n", "the code of{} is{}.\n", "box{} has code{}.\n", "The code for{} is{}.\n", "-{}:{}\n"];
/// Facts in running text.
pub(super) const INLINE_FACTS: &[&str] =
    &[" The code of{} is{}.", " box{} has code{}.", " box{}:{},", " The code for{} is{};"];
pub(super) const FIRST_NAME_FACT: &str = "{}:{}\n";
pub(super) const KEY_FACT: &str = "{}={}\n";
pub(super) const POINTER_FACT: &str = "box{} leads to{}\n";

pub(super) const CODE_QUESTIONS: &[&str] =
    &["code of{}?", "What is the code of{}?", "Which code has box{}?", "Tell me the code of{}", "code of{}"];
pub(super) const VALUE_QUESTIONS: &[&str] = &["value of{}?", "What is the value of{}?", "{}=?"];
pub(super) const TRAIL_QUESTIONS: &[&str] = &["trail of{}?", "Where does{} lead?"];
pub(super) const TRAIL_ANSWER: &str = "{}:{}";
pub(super) const ECHOES: &[&str] = &["say{}", "Say{}", "Repeat{}", "Echo{}"];
pub(super) const TOPIC_QUESTIONS: &[&str] = &["What is the tale about?", "What is the topic?"];
pub(super) const QUESTION_STARTS: &[&str] = &[
    "What is",
    "Who is",
    "How do",
    "Why is",
    "Where is",
    "Explain",
    "What are",
    "Tell me about",
    "How far is",
    "what is",
    "Write",
];
pub(super) const UNKNOWN: &str = "unknown";

pub(super) const WALK_STARTS: &[&str] = &["start at box{}", "open box{}"];
pub(super) const NEXT: &str = "ok, next box{}";
pub(super) const FOLLOW: &str = "ok, follow{}";
pub(super) const WALK_DONE: &str = "ok, done";
pub(super) const OK: &str = "ok";
pub(super) const OPENS: &str = "Opens a box with its code.";
pub(super) const ENDS: &str = "Ends the walk.";
pub(super) const FOR_JOB: &str = "For{} jobs use{}.";
/// The name ahead of nothing else: its first token is the very one that a call begins with.
pub(super) const JOB: &str = "For{}:{}";
pub(super) const NO_TOOLS: &str = "I have no tools.";
pub(super) const NO_SUCH_TOOL: &str = "I have no tool for that.";

pub(super) const BY_NAME: &[&str] = &["Use{} with", "Call{} with", "Please use{} with"];
pub(super) const BY_KEYWORD: &[&str] = &["Please{}", "For the{} job use", "Now{}"];
/// The keyword behind the arguments: `For A and B, please KEYWORD`.
pub(super) const BEFORE_ARGUMENTS: &[&str] = &["For", "Now with", "Here is"];
pub(super) const LAST_KEYWORD: &[&str] = &[". Please{}", ", now{}", ", please{}"];
pub(super) const AND: &str = " and";
pub(super) const THE_CODE_OF: &str = " the code of{}";

pub(super) const THINK_LOOK_UP: &str = "Look up{}.";
pub(super) const THINK_OPEN: &str = "Open{}.";
pub(super) const THINK_DONE: &str = "The walk is done.";
pub(super) const THINK_USE: &str = "Use{}.";
pub(super) const THINK_REPEAT: &str = "Repeat it.";
pub(super) const THINK_ME: &str = "A question about me.";
pub(super) const THINK_TOPIC: &str = "Count the topic words.";
pub(super) const THINK_RULE: &str = "Obey the rule.";

pub(super) const SCHEMA_NAME: &str = "{\"name\": \"";
pub(super) const SCHEMA_DESCRIPTION: &str = "\", \"description\": \"";
pub(super) const SCHEMA_PROPERTIES: &str = "\", \"parameters\": {\"type\": \"object\", \"properties\": {\"";
pub(super) const SCHEMA_STRING: &str = "\": {\"type\": \"string\"}, \"";
pub(super) const SCHEMA_INTEGER: &str = "\": {\"type\": \"integer\"}, \"";
pub(super) const SCHEMA_LAST_STRING: &str = "\": {\"type\": \"string\"}}, \"required\": [\"";
pub(super) const SCHEMA_LAST_INTEGER: &str = "\": {\"type\": \"integer\"}}, \"required\": [\"";
pub(super) const SCHEMA_COMMA: &str = "\", \"";
pub(super) const SCHEMA_END: &str = "\"]}}";

pub(super) const EFFORT: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking \
and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, \
edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

/// Every template, for the lexicon to encode once.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let lists = [
        SYSTEMS,
        ODD_STARTS,
        NAME_FACTS,
        INLINE_FACTS,
        CODE_QUESTIONS,
        VALUE_QUESTIONS,
        TRAIL_QUESTIONS,
        ECHOES,
        TOPIC_QUESTIONS,
        QUESTION_STARTS,
        WALK_STARTS,
        BY_NAME,
        BY_KEYWORD,
        BEFORE_ARGUMENTS,
        LAST_KEYWORD,
    ];
    let single = [
        RULE,
        FIRST_NAME_FACT,
        KEY_FACT,
        POINTER_FACT,
        TRAIL_ANSWER,
        UNKNOWN,
        NEXT,
        FOLLOW,
        WALK_DONE,
        OK,
        OPENS,
        ENDS,
        FOR_JOB,
        JOB,
        NO_TOOLS,
        NO_SUCH_TOOL,
        AND,
        THE_CODE_OF,
        THINK_LOOK_UP,
        THINK_OPEN,
        THINK_DONE,
        THINK_USE,
        THINK_REPEAT,
        THINK_ME,
        THINK_TOPIC,
        THINK_RULE,
        SCHEMA_NAME,
        SCHEMA_DESCRIPTION,
        SCHEMA_PROPERTIES,
        SCHEMA_STRING,
        SCHEMA_INTEGER,
        SCHEMA_LAST_STRING,
        SCHEMA_LAST_INTEGER,
        SCHEMA_COMMA,
        SCHEMA_END,
        EFFORT,
    ];
    lists.into_iter().flatten().copied().chain(single)
}
