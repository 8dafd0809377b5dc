//! Text files -> documents, one per file.
//!
//! In: the paths of one group and their sizes when they were found. Out: every file's text in one buffer.
//! A byte order mark at the start of a file is dropped; a file that is binary, empty or not UTF-8 gives no
//! document and is reported as such.

use super::{Taken, utf8};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
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
/// `named` files were given one by one, so a binary one is a problem; others were found in a folder, so a
/// binary one is left out and counted. With `raw`, a file is its bytes, whatever they are.
///
/// The buffer is sized once for the whole group (zero pages from the system cost nothing until touched), and
/// each file is read straight to its place: no copy, no allocation per file. A file that grew since it was
/// found makes the buffer grow.
///
/// A file that is gone or may not be read is a problem of that file. Any other failure (a disk or server that does not
/// answer, no memory) says nothing about the file: it is the result, with the number of the file, and nothing is read.
pub fn read_texts<P: AsRef<Path>>(
    paths: &[P],
    sizes: &[u64],
    named: bool,
    raw: bool,
) -> Result<Texts, (usize, io::Error)> {
    let total: u64 = sizes.iter().sum();
    let mut texts = Texts::default();
    let largest = || sizes.iter().enumerate().max_by_key(|(_, size)| **size).map_or(0, |(number, _)| number);
    // `vec!` aborts where there is no memory, so it is reserved first; pages that nobody touches cost nothing. The
    // compiler may leave out an allocation that nothing looks at.
    let mut room = Vec::<u8>::new();
    room.try_reserve_exact(usize::try_from(total).unwrap_or(usize::MAX).saturating_add(1))
        .map_err(|_| (largest(), io::Error::from_raw_os_error(libc::ENOMEM)))?;
    drop(std::hint::black_box(room));
    // One spare byte, so that the read that meets the end of the last file has room to ask for more.
    texts.taken.data = vec![0; total as usize + 1];
    texts.taken.ends.reserve(paths.len());
    texts.taken.origins.reserve(paths.len());
    let mut used = 0;
    for (number, path) in paths.iter().enumerate() {
        let data = &mut texts.taken.data;
        let number = number as u64;
        let mut end = match append(path.as_ref(), data, used, raw) {
            Ok(end) => end,
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Err((number as usize, error));
            }
            Err(error) => {
                texts.taken.problems.push(number, || format!("cannot be read: {error}"));
                continue;
            }
        };
        // Bytes are named as they are counted in the file, mark included.
        let mut marked = 0;
        if !raw && data[used..end].starts_with(BOM) {
            data.copy_within(used + BOM.len()..end, used);
            end -= BOM.len();
            marked = BOM.len() as u64;
        }
        let text = &data[used..end];
        if !raw && is_binary(text) {
            if named {
                texts
                    .taken
                    .problems
                    .push(number, || "binary file (a NUL byte near its start), expected text (or option bytes)".into());
            } else {
                texts.binary += 1;
            }
        } else if let Some(at) = utf8::first_invalid(text).filter(|_| !raw) {
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
    Ok(texts)
}

/// Reads the file at `path` to `data[start..]`, which grows where needed; gives where the file ends in `data`. Of a
/// binary file, only as much is read as shows that it is one, unless all are `raw`.
fn append(path: &Path, data: &mut Vec<u8>, start: usize, raw: bool) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut end = start;
    loop {
        if end == data.len() {
            let more = (end - start).max(64 * 1024);
            data.try_reserve(more).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
            data.resize(end + more, 0);
        }
        let window = !raw && end < start + BINARY_WINDOW;
        let until = if window { data.len().min(start + BINARY_WINDOW) } else { data.len() };
        match file.read(&mut data[end..until]) {
            Ok(0) => return Ok(end),
            Ok(n) => end += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if window && is_binary(&data[start..end]) {
            return Ok(end);
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
        let texts = read_texts(&paths, &[0; 6], false, false).expect("nothing but problems of files");
        assert_eq!(texts.taken.data, b"onethree");
        assert_eq!(texts.taken.ends, [3, 8]);
        assert_eq!(texts.taken.origins, [0, 4]);
        assert_eq!((texts.binary, texts.taken.empty, texts.taken.problems.count), (1, 1, 2));
        assert_eq!(texts.taken.problems.listed[0].reason, "invalid UTF-8 at byte 1 (found 0xff)");
        assert_eq!(texts.taken.problems.listed[1].index, 5);
        let texts = read_texts(&paths[..5], &[0; 5], true, true).expect("nothing but problems of files");
        assert_eq!(texts.taken.data, files.concat());
        assert_eq!((texts.taken.origins.len(), texts.taken.empty), (4, 1));
        std::fs::remove_dir_all(&folder).expect("the folder goes");
    }
}
