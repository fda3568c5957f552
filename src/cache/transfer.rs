//! The hand-over of a request from prefill to decode.
//!
//! Everything that decode will read is listed in a manifest, layer by layer, and an incomplete one is refused: a layer whose
//! window, rows, keys or state were forgotten would decode garbage without any error. In process the hand-over is a move.

use super::pages::PageError;
use super::sequence::{Caches, Sequence};
use crate::model::CacheLayout;
use crate::ops::{BLOCK_TOKENS, PAGE_ROWS, WINDOW};

/// Which parts of one layer's cache a manifest carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerParts {
    pub window: bool,
    /// Compressed rows and the compressor's state.
    pub rows: bool,
    /// Index keys and their compressor's state.
    pub index: bool,
}

/// What prefill leaves for decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub sequence: Sequence,
    /// Tokens whose rows are in the cache.
    pub len: usize,
    pub layers: Vec<LayerParts>,
}

impl Manifest {
    /// A manifest of everything that `layout` holds for a request.
    #[must_use]
    pub fn complete(layout: &CacheLayout, sequence: Sequence, len: usize) -> Self {
        let layers = layout.layers.iter().map(|l| LayerParts {
            window: true,
            rows: l.rows.is_some(),
            index: l.index.is_some(),
        });
        Self { sequence, len, layers: layers.collect() }
    }
}

/// Why a manifest was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("the manifest has {found} layers, the model {expected}")]
    Layers { expected: usize, found: usize },
    #[error("layer {layer}: the manifest lacks its {part}")]
    Missing { layer: usize, part: &'static str },
    #[error("the manifest covers {len} tokens, but its {part} only {covered}")]
    Short { len: usize, part: &'static str, covered: usize },
    #[error(transparent)]
    Page(#[from] PageError),
}

/// Moves a request's cache from where it was prefilled to where it is decoded.
pub trait Transfer {
    /// # Errors
    /// [`TransferError`]; the request then fails, and its pages are its sender's to return.
    fn hand_over(&mut self, caches: &Caches, manifest: &Manifest) -> Result<(), TransferError>;
}

/// Prefill and decode share the pools: only the claim is checked.
#[derive(Clone, Debug)]
pub struct InProcess {
    layout: CacheLayout,
}

impl InProcess {
    #[must_use]
    pub fn new(layout: CacheLayout) -> Self {
        Self { layout }
    }
}

impl Transfer for InProcess {
    fn hand_over(&mut self, caches: &Caches, manifest: &Manifest) -> Result<(), TransferError> {
        let (expected, found) = (self.layout.layers.len(), manifest.layers.len());
        if expected != found {
            return Err(TransferError::Layers { expected, found });
        }
        for (layer, (needs, has)) in self.layout.layers.iter().zip(&manifest.layers).enumerate() {
            let parts = [
                ("window rows", !has.window),
                ("compressed rows and state", needs.rows.is_some() && !has.rows),
                ("index keys and state", needs.index.is_some() && !has.index),
            ];
            if let Some((part, _)) = parts.iter().find(|(_, missing)| *missing) {
                return Err(TransferError::Missing { layer, part });
            }
        }
        check_cover(manifest)?;
        let seq = &manifest.sequence;
        seq.blocks.iter().try_for_each(|&page| caches.blocks.check(seq.owner, page))?;
        seq.windows.iter().try_for_each(|&(_, page)| caches.windows.check(seq.owner, page))?;
        Ok(caches.slots.check(seq.owner, seq.slot)?)
    }
}

/// The pages reach from the oldest row that decode can see to the last token.
fn check_cover(manifest: &Manifest) -> Result<(), TransferError> {
    let (seq, len) = (&manifest.sequence, manifest.len);
    let covered = seq.blocks.len() * BLOCK_TOKENS;
    if covered < len {
        return Err(TransferError::Short { len, part: "blocks", covered });
    }
    let (first, last) = (len.saturating_sub(WINDOW - 1) / PAGE_ROWS, len.saturating_sub(1) / PAGE_ROWS);
    let held = seq.windows.front().is_some_and(|(n, _)| *n <= first)
        && seq.windows.back().is_some_and(|(n, _)| *n >= last);
    if !held && len > 0 {
        let covered = seq.windows.back().map_or(0, |(n, _)| (n + 1) * PAGE_ROWS);
        return Err(TransferError::Short { len, part: "window pages", covered });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Owner, Page};
    use crate::model::{CacheLayout, CacheSize, LayerCache};
    use crate::step::{PoolId, PoolSpec, StateId, StateSpec};

    fn layout() -> CacheLayout {
        let pool =
            |id| PoolSpec { id: PoolId(id), name: id.to_string(), pages: 9, page_rows: 64, page_bytes: 64 };
        let state = |id| StateSpec { id: StateId(id), name: id.to_string(), slots: 2, len: 4 };
        let layer =
            LayerCache { window: pool(0), rows: Some((pool(1), state(0))), index: Some((pool(2), state(1))) };
        let size = CacheSize { window_pages: 9, blocks: 9, slots: 2 };
        CacheLayout { size, layers: vec![layer], carry: state(2) }
    }

    fn manifest(caches: &mut Caches) -> Manifest {
        let mut sequence = Sequence::admit(caches, Owner(1), 300).unwrap();
        sequence.extend_window(caches, 256, 300).unwrap();
        Manifest::complete(&layout(), sequence, 300)
    }

    /// P02: a manifest that lacks the window, the compressor state or index K.
    #[test]
    fn an_incomplete_manifest_is_refused_by_the_part_that_it_lacks() {
        let mut caches = Caches::new(layout().size);
        let whole = manifest(&mut caches);
        let mut transfer = InProcess::new(layout());
        assert_eq!(transfer.hand_over(&caches, &whole), Ok(()));
        type Remove = fn(&mut LayerParts);
        let parts: [(&str, Remove); 3] = [
            ("window rows", |l| l.window = false),
            ("compressed rows and state", |l| l.rows = false),
            ("index keys and state", |l| l.index = false),
        ];
        for (part, remove) in parts {
            let mut cut = whole.clone();
            remove(&mut cut.layers[0]);
            assert_eq!(transfer.hand_over(&caches, &cut), Err(TransferError::Missing { layer: 0, part }));
        }
        let mut cut = whole.clone();
        cut.sequence.blocks.pop();
        assert!(matches!(transfer.hand_over(&caches, &cut), Err(TransferError::Short { .. })));
        let mut cut = whole;
        cut.sequence.windows.pop_back();
        assert!(matches!(transfer.hand_over(&caches, &cut), Err(TransferError::Short { .. })));
    }

    /// P05: a stale generation is refused.
    #[test]
    fn a_stale_page_is_refused() {
        let mut caches = Caches::new(layout().size);
        let mut stale = manifest(&mut caches);
        let Page { id, generation } = stale.sequence.blocks[0];
        stale.sequence.blocks[0] = Page { id, generation: generation + 1 };
        let refused = InProcess::new(layout()).hand_over(&caches, &stale);
        assert!(matches!(refused, Err(TransferError::Page(PageError::Stale { .. }))), "{refused:?}");
    }
}
