//! Loops over flat buffers that every room shares.

use xxhash_rust::xxh3::xxh3_128;

/// The xxh3 hash of every document of `data`, as (low, high) halves one after another.
///
/// 128 bits: among a billion documents, two different ones share a hash with a chance of about 1e-21, so equal
/// hashes may be taken for equal texts.
pub fn hash_documents(data: &[u8], ends: &[i64]) -> Vec<u64> {
    let mut hashes = Vec::with_capacity(ends.len() * 2);
    let mut start = 0;
    for &end in ends {
        let hash = xxh3_128(&data[start..end as usize]);
        hashes.extend([hash as u64, (hash >> 64) as u64]);
        start = end as usize;
    }
    hashes
}

/// Whether `ends` cut `data` into documents: rising, and the last one where the data ends.
pub fn ends_fit(data_len: usize, ends: &[i64]) -> bool {
    let mut last = 0;
    ends.iter().all(|&end| std::mem::replace(&mut last, end) <= end) && last as usize == data_len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_documents_have_equal_hashes_wherever_they_stand() {
        let hashes = hash_documents(b"onetwoone", &[3, 6, 9]);
        assert_eq!(hashes[0..2], hashes[4..6]);
        assert_ne!(hashes[0..2], hashes[2..4]);
    }

    #[test]
    fn ends_must_rise_to_the_end_of_the_data() {
        assert!(ends_fit(0, &[]) && ends_fit(3, &[0, 3, 3]));
        assert!(!ends_fit(3, &[]) && !ends_fit(3, &[2]) && !ends_fit(3, &[4, 3]) && !ends_fit(3, &[-1, 3]));
    }
}
