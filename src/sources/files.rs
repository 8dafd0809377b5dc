//! Text files -> documents, one per file.
//!
//! In: the paths of one group and their sizes when they were found. Out: every file's text in one buffer.
//! A byte order mark at the start of a file is dropped; a file that is binary, empty or not UTF-8 gives no
//! document and is reported as such.

use super::{Taken, utf8};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// A NUL byte within this many bytes makes a file binary: the rule of git.
pub const BINARY_WINDOW: usize = 8 * 1024;

/// The UTF-8 byte order mark.
pub const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The documents of a group, and how many of its files were binary.
#[derive(Debug, Default)]
pub struct Texts {
    /// One document per file, with the file's number in the group as its origin.
    pub taken: Taken,
    /// Binary files that were left out; none where `named`.
    pub binary: u64,
}

/// Whether git would call this file binary.
pub fn is_binary(text: &[u8]) -> bool {
    memchr::memchr(0, &text[..text.len().min(BINARY_WINDOW)]).is_some()
}

/// Reads whole files into one buffer.
///
/// `named` files were asked for one by one, so a binary one is a problem; others were found in a folder, so a
/// binary one is left out and counted.
///
/// The buffer is sized once for the whole group (zero pages from the system cost nothing until touched), and
/// each file is read straight to its place: no copy, no allocation per file. A file that grew since it was
/// found makes the buffer grow.
pub fn read_texts<P: AsRef<Path>>(paths: &[P], sizes: &[u64], named: bool) -> Texts {
    let total: u64 = sizes.iter().sum();
    let mut texts = Texts::default();
    // One spare byte, so that the read that meets the end of the last file has room to ask for more.
    texts.taken.data = vec![0; total as usize + 1];
    texts.taken.ends.reserve(paths.len());
    texts.taken.origins.reserve(paths.len());
    let mut used = 0;
    for (number, path) in paths.iter().enumerate() {
        let data = &mut texts.taken.data;
        let number = number as u64;
        let mut end = match append(path.as_ref(), data, used) {
            Ok(end) => end,
            Err(error) => {
                texts.taken.problems.push(number, || format!("cannot be read: {error}"));
                continue;
            }
        };
        // Bytes are named as they are counted in the file, mark included.
        let mut marked = 0;
        if data[used..end].starts_with(BOM) {
            data.copy_within(used + BOM.len()..end, used);
            end -= BOM.len();
            marked = BOM.len() as u64;
        }
        let text = &data[used..end];
        if is_binary(text) {
            if named {
                texts.taken.problems.push(number, || "binary file (a NUL byte near its start), expected text".into());
            } else {
                texts.binary += 1;
            }
        } else if let Some(at) = utf8::first_invalid(text) {
            texts.taken.problems.push(number, || utf8::describe(text, at, marked));
        } else if text.is_empty() {
            texts.taken.empty += 1;
        } else {
            used = end;
            texts.taken.ends.push(used as i64);
            texts.taken.origins.push(number as i64);
        }
    }
    texts.taken.data.truncate(used);
    texts
}

/// Reads the file at `path` to `data[start..]`, which grows where needed; gives where the file ends in `data`.
fn append(path: &Path, data: &mut Vec<u8>, start: usize) -> std::io::Result<usize> {
    let mut file = File::open(path)?;
    let mut end = start;
    loop {
        if end == data.len() {
            data.resize(end + (end - start).max(64 * 1024), 0);
        }
        match file.read(&mut data[end..]) {
            Ok(0) => return Ok(end),
            Ok(n) => end += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_group_is_one_buffer_without_marks_binaries_and_empties() {
        let folder = std::env::temp_dir().join(format!("piecemill-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        let files: [&[u8]; 5] = [b"\xEF\xBB\xBFone", b"a\0b", b"", b"t\xffwo", b"three"];
        let mut paths: Vec<PathBuf> = Vec::new();
        for (number, text) in files.iter().enumerate() {
            paths.push(folder.join(number.to_string()));
            std::fs::write(&paths[number], text).expect("a file for the test");
        }
        paths.push(folder.join("gone"));
        // Sizes of zero: every file "grew" since it was found.
        let texts = read_texts(&paths, &[0; 6], false);
        assert_eq!(texts.taken.data, b"onethree");
        assert_eq!(texts.taken.ends, [3, 8]);
        assert_eq!(texts.taken.origins, [0, 4]);
        assert_eq!((texts.binary, texts.taken.empty, texts.taken.problems.count), (1, 1, 2));
        assert_eq!(texts.taken.problems.listed[0].reason, "invalid UTF-8 at byte 1 (found 0xff)");
        assert_eq!(texts.taken.problems.listed[1].index, 5);
        std::fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
