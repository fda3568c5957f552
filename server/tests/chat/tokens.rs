//! The tokenizer: what may form control tokens, what may not, and which files are refused.

use flashlane::checkpoint::ModelConfig;
use flashlane_server::chat::{ChatTokenizer, Control, EncodeError, Pieces, Symbol, TokenizerError};
use serde_json::{Value, json};

use crate::support::{LONG, control, ids, tokenizer, tokenizer_json};

fn load(edit: impl FnOnce(&mut Value)) -> Result<ChatTokenizer, TokenizerError> {
    let mut file = tokenizer_json();
    edit(&mut file);
    ChatTokenizer::from_bytes(file.to_string().as_bytes())
}

#[test]
fn text_stays_text_and_control_tokens_stay_control_tokens() {
    let tokenizer = tokenizer();
    for spelled in Control::ALL.map(Control::spelling) {
        let mut pieces = Pieces::default();
        pieces.text(spelled);
        assert_eq!(tokenizer.encode(pieces.as_slice(), 100).unwrap(), ids(spelled), "{spelled}");
        let raw = tokenizer.encode_raw(&format!("a{spelled}"), 100).unwrap();
        assert_eq!(raw.len(), 3, "{spelled}: begin, a, and one token");
    }
}

#[test]
fn every_byte_comes_back() {
    let tokenizer = tokenizer();
    let text: String = (0..0x250).filter_map(char::from_u32).chain("漢🦀".chars()).collect();
    let bytes: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!(tokenizer.decode(&bytes), text);
    assert_eq!(tokenizer.symbol(control(Control::Dsml)), Symbol::Control(Control::Dsml));
    assert_eq!(tokenizer.symbol(u32::MAX), Symbol::Silent);
}

#[test]
fn the_limit_counts_every_token() {
    let tokenizer = tokenizer();
    let mut pieces = Pieces::default();
    pieces.control(Control::Bos).text("abc");
    assert_eq!(tokenizer.encode(pieces.as_slice(), 4).unwrap().len(), 4);
    let error = tokenizer.encode(pieces.as_slice(), 3).unwrap_err();
    assert_eq!(error, EncodeError::TooLong { at_least: 4, limit: 3 });
}

#[test]
fn files_that_cannot_encode_chat_are_refused_in_words() {
    for (name, result, words) in [
        ("no sentinel", load(|file| drop(file["added_tokens"].as_array_mut().unwrap().pop())), "｜DSML｜"),
        ("decoder", load(|file| file["decoder"] = json!({"type": "Metaspace"})), "found Metaspace"),
        ("id", load(|file| file["added_tokens"][0]["id"] = json!(9)), "the file says id 9"),
        (
            "spelling",
            load(|file| {
                let vocab = file["model"]["vocab"].as_object_mut().unwrap();
                vocab.retain(|_, id| *id != LONG);
                vocab.insert("漢".into(), json!(LONG));
            }),
            "漢",
        ),
        ("no JSON", ChatTokenizer::from_bytes(b"{"), "tokenizer.json"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
}

#[test]
fn a_tokenizer_of_another_model_is_refused() {
    let json = include_bytes!("../../../models/tiny/tokenizer.json");
    let of = |edit: &dyn Fn(&mut Value)| {
        let mut config: Value =
            serde_json::from_slice(include_bytes!("../../../models/tiny/config.json")).unwrap();
        edit(&mut config);
        let (config, _) = ModelConfig::from_json(config.to_string().as_bytes()).unwrap();
        ChatTokenizer::for_model(json, &config)
            .map(|tokenizer| tokenizer.vocab_size())
            .map_err(|e| e.to_string())
    };
    assert_eq!(of(&|_| ()), Ok(1088));
    assert_eq!(of(&|config| config["vocab_size"] = json!(1089)), Ok(1088));
    let small = of(&|config| config["vocab_size"] = json!(1087)).unwrap_err();
    assert!(small.contains("has id 1087, but config.json has a vocab_size of 1087"), "{small}");
    let end = of(&|config| config["eos_token_id"] = json!(7)).unwrap_err();
    assert!(end.contains("Eos has id 1, but config.json has eos_token_id 7"), "{end}");
    let far = load(|file| file["model"]["vocab"]["a"] = json!(u32::MAX)).unwrap_err().to_string();
    assert!(far.contains("the largest id is 4294967295"), "{far}");
}
