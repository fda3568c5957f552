//! The kernels by name, and the fatbins that the build embedded.

include!(concat!(env!("OUT_DIR"), "/fatbins.rs"));

macro_rules! kernels {
    ($($variant:ident, $file:literal, $symbol:literal;)*) => {
        /// A kernel of `csrc/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $(#[doc = concat!("`", $symbol, "` of `csrc/", $file, ".cu`.")] $variant,)*
        }

        impl Kernel {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The source file's stem.
            #[must_use]
            pub const fn file(self) -> &'static str {
                match self { $(Self::$variant => $file,)* }
            }

            #[must_use]
            pub const fn symbol(self) -> &'static str {
                match self { $(Self::$variant => $symbol,)* }
            }
        }
    };
}

kernels! {
    Attention5, "attention", "attention_5";
    Attention8, "attention", "attention_8";
    AttentionWide, "attention_wide", "attention_wide";
    Canary, "canary", "canary";
    CompressC4, "compress", "compress_c4";
    CompressC128, "compress", "compress_c128";
    Delay, "delay", "delay";
    Embed, "embed", "embed";
    ExpertsUp, "experts", "experts_up";
    ExpertsDown, "experts", "experts_down";
    ExpertsUpFp4, "experts_fp4", "experts_up_fp4";
    ExpertsDownFp4, "experts_fp4", "experts_down_fp4";
    Fill, "fill", "fill";
    HyperPre, "hyper", "hyper_pre";
    HyperPreSplit, "hyper", "hyper_pre_split";
    HyperPost, "hyper", "hyper_post";
    HyperHead, "hyper", "hyper_head";
    IndexLogitsFast, "index_logits", "index_logits_fast";
    IndexLogitsSimple, "index_logits", "index_logits_simple";
    IndexQuery, "index_query", "index_query";
    IndexSelectFast2, "index_select", "index_select_fast_2";
    IndexSelectFast4, "index_select", "index_select_fast_4";
    IndexSelectFast8, "index_select", "index_select_fast_8";
    IndexSelectSimple, "index_select", "index_select_simple";
    IndexStore, "index_store", "index_store";
    Linear8, "linear", "linear_8";
    Linear8Fp8, "linear", "linear_8_fp8";
    Linear32, "linear", "linear_32";
    Linear64, "linear", "linear_64";
    Linear32Eighth, "linear", "linear_32_eighth";
    Linear64Eighth, "linear", "linear_64_eighth";
    Linear64Half, "linear", "linear_64_half";
    Linear64Turns, "linear", "linear_64_turns";
    Linear128, "linear", "linear_128";
    Linear64Alone, "linear", "linear_64_alone";
    Fp4ToBf16, "nvfp4", "nvfp4_to_bf16";
    Fp4ToE4m3, "nvfp4", "nvfp4_to_e4m3";
    Fp4Quantize, "nvfp4", "nvfp4_quantize";
    Query, "query", "query";
    RmsNorm, "rmsnorm", "rmsnorm";
    RopeStore, "rope_store", "rope_store";
    Router, "router", "router";
    Sample, "sample", "sample";
    SampleCluster, "sample", "sample_cluster";
    TopK, "topk", "topk";
    TopKCluster, "topk", "topk_cluster";
    TopKLong, "topk_long", "topk_long";
}

/// Whether this build has compiled kernels.
#[must_use]
pub fn kernels_built() -> bool {
    !FATBINS.is_empty()
}

/// The fatbin of a source file.
pub(super) fn fatbin(file: &str) -> Option<&'static [u8]> {
    FATBINS.iter().find(|(name, _)| *name == file).map(|(_, bytes)| *bytes)
}
