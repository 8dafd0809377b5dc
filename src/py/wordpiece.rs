//! Temporary: WordPiece for the tests until `Encoder.wordpiece` is there; and `normalize`.

use super::to_py;
use crate::encode::normalize::{Normalizer, Scratch as NormalizerScratch, Step};
use crate::encode::wordpiece::{Options, Scratch, WordPiece};
use crate::error::Error;
use pyo3::prelude::*;

/// `text` after the normalization steps, as `Encoder` takes them.
#[pyfunction]
fn normalize(text: &str, steps: Vec<Vec<String>>) -> PyResult<String> {
    let steps = steps.iter().map(|step| Step::parse(step)).collect::<Result<Vec<_>, Error>>().map_err(to_py)?;
    let mut scratch = NormalizerScratch::default();
    Ok(Normalizer::new(steps).map_err(to_py)?.apply(text, &mut scratch).to_owned())
}

#[pyclass(name = "WordPiece", frozen, module = "piecemill._core")]
struct PyWordPiece(WordPiece);

#[pymethods]
impl PyWordPiece {
    #[new]
    #[expect(clippy::too_many_arguments)]
    fn new(
        tokens: Vec<(Vec<u8>, u32)>,
        unk: u32,
        prefix: String,
        max_chars: usize,
        clean: bool,
        chinese: bool,
        strip_accents: bool,
        lowercase: bool,
    ) -> PyResult<Self> {
        let tokens: Vec<(&[u8], u32)> = tokens.iter().map(|(token, id)| (token.as_slice(), *id)).collect();
        let options = Options { unk, prefix, max_chars, clean, chinese, strip_accents, lowercase };
        Ok(PyWordPiece(WordPiece::new(&tokens, &options).map_err(to_py)?))
    }

    /// The ids of `text`, raw word by raw word.
    fn encode(&self, text: &str) -> Vec<u32> {
        let (mut scratch, mut out) = (Scratch::default(), vec![]);
        self.0.for_each(text, |word| self.0.encode(word, &mut scratch, &mut out));
        out
    }

    /// The ids of `text` as one word.
    fn encode_whole(&self, text: &str) -> Vec<u32> {
        let (mut scratch, mut out) = (Scratch::default(), vec![]);
        self.0.encode(text.as_bytes(), &mut scratch, &mut out);
        out
    }

    /// The raw words of `text`.
    fn words(&self, text: &str) -> Vec<String> {
        let mut words = vec![];
        self.0.for_each(text, |word| words.push(String::from_utf8_lossy(word).into_owned()));
        words
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyWordPiece>()?;
    module.add_function(wrap_pyfunction!(normalize, module)?)
}
