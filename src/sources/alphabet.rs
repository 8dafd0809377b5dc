//! Which bytes documents have, and which documents have others than they may.

use super::utf8::documents_with;

/// Which of the 256 bytes `data` has.
pub fn bytes_seen(data: &[u8]) -> [bool; 256] {
    let mut seen = [false; 256];
    data.iter().for_each(|&byte| seen[usize::from(byte)] = true);
    seen
}

/// Every document of `data` with a byte that is not `allowed`: its number, and where the first one is in it.
pub fn documents_outside(data: &[u8], ends: &[i64], allowed: &[u8]) -> Vec<(u64, u64)> {
    let known = bytes_seen(allowed);
    documents_with(data, ends, |document| document.iter().position(|&byte| !known[usize::from(byte)]))
}
