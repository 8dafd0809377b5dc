//! The binding: extract, let go of the interpreter, call, translate the error. No decision lives here.
//! What each function and class does is said once, in `python/piecemill/_core.pyi`.

mod actions_encode;
mod actions_train;
mod arrays;
mod encode;
mod loading;
mod preparing;
mod pretoken;
mod progress;
mod sources;
mod tokenizer_json;
mod training;

use crate::error::Error;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The exception of `piecemill.errors` that fits `error`.
fn to_py(error: Error) -> PyErr {
    let name = match &error {
        Error::Source(_) => "SourceError",
        Error::Split(_) => "PretokenizerError",
        Error::Plan(_) => "PlanError",
        Error::Training(_) => "TrainingError",
        Error::Tokenizer(_) => "TokenizerError",
        Error::Stopped => return PyKeyboardInterrupt::new_err(()),
    };
    let message = error.to_string();
    Python::attach(|py| {
        let class = py.import("piecemill.errors").and_then(|errors| errors.getattr(name));
        match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
            Ok(class) => PyErr::from_type(class, message),
            Err(broken) => broken,
        }
    })
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::actions_encode::PySegmenter;
    #[pymodule_export]
    use super::actions_train::{PyLearnedActions, python_set_order, train_actions};
    #[pymodule_export]
    use super::arrays::{PyXxh3, count_ids, hash_documents};
    #[pymodule_export]
    use super::encode::{PyDecoder, PyEncoder, PyIds, normalize};
    #[pymodule_export]
    use super::loading::{gather_windows, map_file};
    #[pymodule_export]
    use super::preparing::{first_match, gather_documents, gather_tokens, later_copies, sort_hashes};
    #[pymodule_export]
    use super::pretoken::{code_points, resolve_split, split_text, split_text_reference, splits};
    #[pymodule_export]
    use super::progress::PyProgress;
    #[pymodule_export]
    use super::sources::{
        PyTextBuffer, bytes_seen, cut_text, documents_outside, extract_lines, first_sequence, invalid_documents,
        number_keys, read_integers, read_texts, take_sequences, walk_folder, walk_listing, write_integers,
    };
    #[pymodule_export]
    use super::tokenizer_json::{bpe_body, bpe_parts, bpe_vocabulary};
    #[pymodule_export]
    use super::training::{PyFlatCorpus, PyLearned, PyWordCounter, PyWordCounts};

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    const HASH_PREFIX_BITS: u32 = crate::dedup::PREFIX_BITS;
    #[pymodule_export]
    const HASH_ITEM_BYTES: usize = crate::dedup::ITEM_BYTES;
}
