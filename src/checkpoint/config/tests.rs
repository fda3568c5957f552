use super::*;
use crate::checkpoint::synthetic::tiny_config;

fn parse(object: &Map<String, Value>) -> Result<ModelConfig, String> {
    let bytes = serde_json::to_vec(object).unwrap();
    ModelConfig::from_json(&bytes).map(|(config, _)| config).map_err(|e| e.to_string())
}

fn with(key: &str, value: Value) -> Result<ModelConfig, String> {
    let mut object = tiny_config().to_json();
    object.insert(key.to_owned(), value);
    parse(&object)
}

#[test]
fn official_keys_round_trip() {
    assert_eq!(parse(&tiny_config().to_json()), Ok(tiny_config()));
}

#[test]
fn the_spelling_of_transformers_means_the_same() {
    let mut object = tiny_config().to_json();
    for key in ["compress_ratios", "num_hash_layers", "rope_theta", "compress_rope_theta", "rope_scaling"] {
        object.remove(key);
    }
    let ratios = tiny_config().compress_ratios;
    let kinds = ratios.iter().map(|r| match r {
        0 => "sliding_attention",
        4 => "compressed_sparse_attention",
        _ => "heavily_compressed_attention",
    });
    object.insert("layer_types".into(), kinds.collect::<Vec<_>>().into());
    let mlp = (0..tiny_config().num_hidden_layers).map(|l| if l < 1 { "hash_moe" } else { "moe" });
    object.insert("mlp_layer_types".into(), mlp.collect::<Vec<_>>().into());
    object.insert(
        "rope_parameters".into(),
        json!({"main": {"rope_theta": 10000, "rope_type": "default"},
               "compress": {"rope_theta": 160000, "rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                            "original_max_position_embeddings": 65536}}),
    );
    assert_eq!(parse(&object), Ok(ModelConfig { num_draft_layers: 0, ..tiny_config() }));
}

#[test]
fn each_bad_value_is_named() {
    let cases = [
        ("hidden_size", json!("256"), "hidden_size must be an integer in 1..=16777216, found \"256\""),
        ("hidden_size", json!(200), "hidden_size must be a multiple of 128, found 200"),
        ("hidden_size", json!(u64::MAX), "hidden_size must be an integer"),
        ("head_dim", json!(128), "head_dim must be 512, found 128"),
        ("o_groups", json!(3), "num_attention_heads must be a multiple of o_groups (3)"),
        ("num_experts_per_tok", json!(9), "num_experts_per_tok must be at most n_routed_experts (4)"),
        ("num_hash_layers", json!(99), "num_hash_layers must be at most num_hidden_layers"),
        (
            "compress_ratios",
            json!([0, 4]),
            "compress_ratios must have at least num_hidden_layers (3) entries, found 2",
        ),
        ("compress_ratios", json!([0, 4, 2]), "compress_ratios must be of 0, 4 and 128, found [0, 4, 2]"),
        ("compress_ratios", json!("x"), "compress_ratios must be a list of integers, found \"x\""),
        ("compress_ratios", Value::Null, "compress_ratios is missing"),
        ("rms_norm_eps", json!(0), "rms_norm_eps must be above 0"),
        ("rms_norm_eps", json!(1e-300), "rms_norm_eps must be above 0 as an f32, found 1e-300"),
        ("rms_norm_eps", json!([]), "rms_norm_eps must be a number in 0..=3.4028235e38, found []"),
        ("rope_theta", json!(1e300), "rope_theta must be a number in 0..=3.4028235e38, found 1e+300"),
        ("num_hidden_layers", json!(0), "num_hidden_layers must be an integer in 1..=16777216, found 0"),
        (
            "num_hidden_layers",
            json!(1e9),
            "num_hidden_layers must be an integer in 1..=16777216, found 1000000000",
        ),
        (
            "n_routed_experts",
            json!(1 << 24),
            "num_hidden_layers * n_routed_experts must be at most 131072, found 50331648",
        ),
        ("index_topk", json!(1 << 24), "index_topk must be at most 16384, found 16777216"),
        ("hc_sinkhorn_iters", json!(1 << 24), "hc_sinkhorn_iters must be at most 1000, found 16777216"),
        (
            "architectures",
            json!("DeepseekV4ForCausalLM"),
            "architectures must be a list of strings, found \"Deep",
        ),
        (
            "num_nextn_predict_layers",
            json!(-1),
            "num_nextn_predict_layers must be an integer in 0..=16777216, found -1",
        ),
        ("num_hash_layers", json!(1.5), "num_hash_layers must be an integer in 0..=16777216, found 1.5"),
        ("architectures", json!([4]), "architectures must be a list of strings, found [4]"),
        ("model_type", json!(4), "model_type must be a string, found 4"),
        ("scoring_func", json!("softmax"), "scoring_func must be \"sqrtsoftplus\", found \"softmax\""),
        ("tie_word_embeddings", json!(true), "tie_word_embeddings must be false, found true"),
        ("rope_scaling", json!({"type": "linear"}), "rope_scaling must be of type yarn"),
        (
            "rope_scaling",
            json!({"type": "yarn"}),
            "original_max_position_embeddings must be a number above 0",
        ),
        ("rope_theta", json!(1), "rope_theta must be above 1"),
        ("eos_token_id", json!(96), "eos_token_id must be a token id below 96, found 96"),
        ("model_type", json!("deepseek_v41"), "this is DeepSeek-V4.1"),
        (
            "model_type",
            json!("llama"),
            "model_type llama with architecture DeepseekV4ForCausalLM is not served",
        ),
    ];
    for (key, value, expected) in cases {
        let found = with(key, value).unwrap_err();
        assert!(found.contains(expected), "{found:?} lacks {expected:?}");
    }
}

#[test]
fn entries_beyond_the_trunk_are_draft_layers_only_if_there_are_any() {
    assert_eq!(with("num_nextn_predict_layers", json!(0)).unwrap().num_draft_layers, 0);
    assert_eq!(with("num_nextn_predict_layers", json!(5)).unwrap().num_draft_layers, 1);
    assert_eq!(with("num_nextn_predict_layers", Value::Null).unwrap().num_draft_layers, 1);
}

#[test]
fn compress_ratios_are_required() {
    let mut object = tiny_config().to_json();
    object.remove("compress_ratios");
    assert_eq!(parse(&object).unwrap_err(), "config.json: compress_ratios is missing");
}

#[test]
fn what_is_not_an_object_is_refused() {
    for (bytes, expected) in
        [("[]", "is not an object"), ("{", "is not JSON"), ("{}", "model_type (missing)")]
    {
        let found = ModelConfig::from_json(bytes.as_bytes()).unwrap_err().to_string();
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn layers_have_their_kind_and_rope() {
    let config = tiny_config();
    assert_eq!([0, 1, 2].map(|l| config.kind(l)), [LayerKind::Window, LayerKind::C4, LayerKind::C128]);
    assert_eq!(config.rope(0), RopeParams { theta: 10_000.0, yarn: None });
    assert_eq!(config.rope(2), RopeParams { theta: 160_000.0, yarn: config.yarn });
    assert!(config.is_hash(0) && !config.is_hash(1));
}
