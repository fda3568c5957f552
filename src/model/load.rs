//! From checkpoint tensors to the weights that a step names: stacked, decoded or computed, by id.

use std::collections::HashMap;

use rayon::prelude::*;

use super::registry::{Entry, Registry, Source};
use crate::checkpoint::{Checkpoint, IdTable, Matrix, Tensor, TensorProblem};
use crate::step::WeightId;

/// One weight, ready for an executor to take.
#[derive(Clone, Debug)]
pub enum Loaded {
    /// In its stored format.
    Matrix(Matrix),
    /// Row-major.
    Floats(Vec<f32>),
    Table(IdTable),
}

/// Why a checkpoint does not give the weights of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("{0} is not in the checkpoint")]
    Missing(String),
    #[error("{weight}: its {parts} parts differ in width or format and cannot be stacked")]
    Stack { weight: String, parts: usize },
    #[error("{weight}: expected {expected:?}, found {found:?}")]
    Shape { weight: String, expected: [usize; 2], found: [usize; 2] },
    #[error("{0} is not of the kind of tensor that its weight needs")]
    Kind(String),
    #[error(transparent)]
    Value(#[from] TensorProblem),
}

/// Finds every weight of `registry` in a checkpoint, and refuses elements that are no finite numbers.
///
/// # Errors
/// The first [`LoadError`].
pub fn load(registry: &Registry, checkpoint: &Checkpoint) -> Result<Vec<(WeightId, Loaded)>, LoadError> {
    let items = checkpoint.items.iter().map(|item| (item.spec.name.as_str(), &item.tensor)).collect();
    let weights: Vec<_> =
        registry.entries.par_iter().map(|entry| Ok((entry.weight.id, resolve(entry, &items)?))).collect();
    weights.into_iter().collect()
}

fn resolve(entry: &Entry, items: &HashMap<&str, &Tensor>) -> Result<Loaded, LoadError> {
    let find = |name: &str| items.get(name).copied().ok_or_else(|| LoadError::Missing(name.to_owned()));
    let kind = |name: &str| LoadError::Kind(name.to_owned());
    let weight = &entry.weight;
    match &entry.source {
        Source::Stack(names) => {
            let part = |name: &String| match find(name)? {
                Tensor::Matrix(matrix) => finite(matrix),
                _ => Err(kind(name)),
            };
            let parts = names.iter().map(part).collect::<Result<Vec<_>, _>>()?;
            let stacked = Matrix::stack(&weight.name, &parts)
                .ok_or_else(|| LoadError::Stack { weight: weight.name.clone(), parts: parts.len() })?;
            shape(entry, [stacked.rows, stacked.cols])?;
            Ok(Loaded::Matrix(stacked))
        }
        Source::Floats(name) => {
            let (values, found) = match find(name)? {
                Tensor::Vector(vector) => {
                    let cols = vector.shape.last().copied().unwrap_or(1);
                    (vector.values.to_vec(), [vector.values.len() / cols.max(1), cols])
                }
                Tensor::Matrix(matrix) => {
                    let mut values = vec![0.0; finite(matrix)?.rows * matrix.cols];
                    matrix.decode_rows(0..matrix.rows, &mut values);
                    (values, [matrix.rows, matrix.cols])
                }
                Tensor::Ids(_) => return Err(kind(name)),
            };
            shape(entry, found)?;
            Ok(Loaded::Floats(values))
        }
        Source::Table(name) => match find(name)? {
            Tensor::Ids(table) => {
                shape(entry, [table.rows, table.cols])?;
                Ok(Loaded::Table(table.clone()))
            }
            _ => Err(kind(name)),
        },
        Source::Rope { rope, positions } => Ok(Loaded::Floats(rope.table(*positions))),
    }
}

/// Read once here, where all of a weight is about to be used: one bad element would show as logits that are no numbers.
fn finite(matrix: &Matrix) -> Result<&Matrix, LoadError> {
    matrix.not_finite().map_or(Ok(matrix), |problem| Err(problem.into()))
}

fn shape(entry: &Entry, found: [usize; 2]) -> Result<(), LoadError> {
    let weight = &entry.weight;
    let expected = [weight.rows, weight.cols];
    if expected == found {
        Ok(())
    } else {
        Err(LoadError::Shape { weight: weight.name.clone(), expected, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::synthetic;
    use crate::model::ModelWeights;

    #[test]
    fn a_weight_of_another_shape_is_refused_even_with_as_many_elements() {
        let config = synthetic::tiny_config();
        let checkpoint = synthetic::checkpoint(&config, 1).unwrap();
        let (name, rows, cols) = ("hc_head_fn", config.hc_mult, config.hc_mult * config.hidden_size);
        let loaded = |rows, cols| {
            let mut registry = Registry::default();
            registry.floats(name, rows, cols);
            load(&registry, &checkpoint)
        };
        assert!(loaded(rows, cols).is_ok());
        for expected in [[cols, rows], [rows - 1, cols], [rows, cols - 1]] {
            let refused = LoadError::Shape { weight: name.to_owned(), expected, found: [rows, cols] };
            assert_eq!(loaded(expected[0], expected[1]).unwrap_err(), refused);
        }
        let mut registry = Registry::default();
        registry.floats("norm.weight", 1, config.hidden_size - 1);
        assert!(matches!(load(&registry, &checkpoint), Err(LoadError::Shape { .. })));
    }

    #[test]
    fn a_weight_with_an_element_that_is_no_number_is_refused_by_name() {
        let config = synthetic::tiny_config();
        let mut checkpoint = synthetic::checkpoint(&config, 1).unwrap();
        let (_, registry) = ModelWeights::new(&config, 256);
        assert!(load(&registry, &checkpoint).is_ok());
        for name in ["embed.weight", "hc_head_fn", "layers.1.ffn.experts.2.w2.weight"] {
            let item = checkpoint.items.iter_mut().find(|item| item.spec.name == name).unwrap();
            let Tensor::Matrix(matrix) = &mut item.tensor else { panic!("{name}") };
            let whole = matrix.clone();
            let width = matrix.format.row_bytes(1);
            let mut codes = matrix.parts[0].codes.to_vec();
            // All ones is a NaN in every plain format.
            codes[7 * width..8 * width].fill(0xff);
            matrix.parts[0].codes = codes.into();
            let refused = load(&registry, &checkpoint).unwrap_err().to_string();
            assert_eq!(refused, format!("{name}: element 7 is NaN, expected a finite number"));
            let item = checkpoint.items.iter_mut().find(|item| item.spec.name == name).unwrap();
            item.tensor = Tensor::Matrix(whole);
        }
    }
}
