//! Documents -> ids.
//!
//! In: documents (bytes + ends) and a vocabulary. Out: ids + ends, final: with the tokens at the start and the end of
//! each document in place, and as narrow as asked for. The ids are those of the library that the vocabulary comes from,
//! for every valid UTF-8 text, and byte-level BPE without a split takes any bytes; they depend neither on the number of threads nor on the size of the caches. Memory
//! beyond the caller's is a cache and some buffers a thread, whatever the text. The plain version is
//! `reference/encode.py`.
//!
//! ```text
//! documents   in parallel: chunks of documents to threads, ids back in order
//! encoder     one document: added tokens, normalizing, stretches
//! scan        a stretch to batches of words
//! batch       a batch of words to ids: key, probe, miss, write; the cache
//! bpe         misses merged: bytes or characters; lockstep for short words, long for long ones
//! wordpiece   misses of WordPiece; trie: the longest token
//! whole       words that are tokens
//! vocabulary  tokens and merges to symbols; pairs: two symbols to one
//! added       texts that are tokens; normalize: NFC and the like
//! shared      words that any thread has merged, for all of them
//! decode      ids to bytes
//! joined      where a text can be cut because no token crosses the place
//! alphabet    which bytes have a token; documents that are not UTF-8
//! alone       characters that are words by themselves
//! memory      tables and buffers in large pages
//! isa         the same for processors with AVX2, and for any; avx512: for those with AVX-512
//! ```

mod added;
mod alone;
mod alphabet;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod batch;
mod bpe;
mod cache;
mod decode;
mod documents;
mod encoder;
mod isa;
mod joined;
mod lockstep;
mod long;
mod memory;
mod normalize;
mod pairs;
mod scan;
mod shared;
#[cfg(test)]
mod tests;
mod trie;
mod vocabulary;
mod whole;
mod wordpiece;

pub use added::{AddedToken, Special};
pub use bpe::{Bytes, Characters, Unknown};
pub use decode::Decoder;
pub use documents::{Id, Options};
pub use encoder::{Encoder, Prefix, Settings};
pub use isa::Instructions;
#[cfg(any(test, feature = "fuzzing"))]
pub use normalize::Form;
pub use normalize::{Normalizer, Scratch as NormalizerScratch, Step, nfc_leaves};
pub use wordpiece::{Options as WordPieceOptions, WordPiece};
