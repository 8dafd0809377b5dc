//! FASTA and FASTQ -> the letters of each record.
//!
//! In: a buffer that starts where a record starts. Out: the letters of the records that start before `stop`, without
//! header, line ends and (FASTQ) qualities, and the byte at which each record starts.
//!
//! In FASTA a line that begins with `>` is a header, and all lines up to the next one are letters. A FASTQ record has
//! four lines: `@` header, letters, `+`, and as many qualities as letters. A quality line may begin with `@` too; but two
//! lines after it comes a line of letters, which never begins with `+` as the third line of a record does.

use super::{Taken, utf8};
use memchr::{memchr, memmem};

/// How records are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `>` and lines of letters.
    Fasta,
    /// Four lines.
    Fastq,
}

/// What was done of a buffer.
pub struct Records {
    /// The letters; problems are numbered by the byte of the buffer at which their record starts.
    pub taken: Taken,
    /// Bytes that are done with.
    pub done: usize,
    /// Whether a record at or after `stop` was met: what is beyond belongs to others.
    pub ended: bool,
}

/// The first record that starts at or after byte 1 of `buffer`; None if more of the file is needed to decide.
pub fn first_record(buffer: &[u8], form: Form) -> Option<usize> {
    if form == Form::Fasta {
        return memmem::find(buffer, b"\n>").map(|at| at + 1);
    }
    let mut at = next_line(buffer, 0)?;
    loop {
        let third = next_line(buffer, at).and_then(|two| next_line(buffer, two))?;
        if buffer.get(at) == Some(&b'@') && *buffer.get(third)? == b'+' {
            return Some(at);
        }
        at = next_line(buffer, at)?;
    }
}

/// Takes the records of `buffer`, which starts at byte `base` of its file, as far as they are complete: the last one may
/// go on, unless this is the `last` of the file. With `upper`, letters are in upper case.
pub fn take(buffer: &[u8], form: Form, base: u64, stop: u64, last: bool, upper: bool) -> Records {
    let mut taken = Taken { data: Vec::with_capacity(buffer.len()), ..Taken::default() };
    let mut at = 0;
    let mut ended = false;
    loop {
        at += buffer[at..].iter().take_while(|byte| byte.is_ascii_whitespace()).count(); // blank lines
        if at == buffer.len() {
            break;
        }
        if base + at as u64 >= stop {
            ended = true;
            break;
        }
        let from = taken.data.len();
        let end = match form {
            Form::Fasta => fasta(&buffer[at..], last, &mut taken.data),
            Form::Fastq => fastq(&buffer[at..], last, &mut taken.data),
        };
        let (length, problem) = match end {
            Step::Incomplete => {
                taken.data.truncate(from);
                break;
            }
            Step::Record(length) => (
                length,
                utf8::first_invalid(&taken.data[from..]).map(|found| {
                    format!("byte 0x{:02x} among the letters, which is not UTF-8", taken.data[from + found])
                }),
            ),
            Step::Problem(length, reason) => (length, Some(reason)),
        };
        match problem {
            Some(reason) => {
                taken.data.truncate(from);
                taken.problems.push(at as u64, || reason);
            }
            None => {
                if upper {
                    taken.data[from..].make_ascii_uppercase();
                }
                taken.close((base + at as u64) as i64);
            }
        }
        at += length;
    }
    Records { taken, done: at, ended }
}

enum Step {
    Incomplete,
    /// A record, and its length in bytes.
    Record(usize),
    /// Something that is no record, its length in bytes, and why.
    Problem(usize, String),
}

fn fasta(buffer: &[u8], last: bool, letters: &mut Vec<u8>) -> Step {
    let end = match memmem::find(buffer, b"\n>") {
        Some(at) => at + 1,
        None if last => buffer.len(),
        None => return Step::Incomplete,
    };
    if buffer[0] != b'>' {
        return Step::Problem(end, unexpected(buffer, "a FASTA record begins with >"));
    }
    let mut at = next_line(&buffer[..end], 0).unwrap_or(end);
    while at < end {
        let next = next_line(&buffer[..end], at).unwrap_or(end);
        letters.extend_from_slice(buffer[at..next].trim_ascii());
        at = next;
    }
    Step::Record(end)
}

fn fastq(buffer: &[u8], last: bool, letters: &mut Vec<u8>) -> Step {
    let mut lines = [0; 5];
    for line in 1..5 {
        lines[line] = match next_line(buffer, lines[line - 1]) {
            Some(next) => next,
            None if last => buffer.len(),
            None => return Step::Incomplete,
        };
    }
    let line = |number: usize| buffer[lines[number]..lines[number + 1]].trim_ascii();
    let (sequence, qualities) = (line(1), line(3));
    let reason = if buffer[0] != b'@' {
        unexpected(buffer, "a FASTQ record begins with @")
    } else if !line(2).starts_with(b"+") {
        unexpected(
            line(2),
            "the third line of a FASTQ record begins with + (records of more than four lines are not read)",
        )
    } else if sequence.len() != qualities.len() {
        format!("{} letters and {} qualities; a FASTQ record has as many of both", sequence.len(), qualities.len())
    } else {
        letters.extend_from_slice(sequence);
        return Step::Record(lines[4]);
    };
    // On with what looks like a record, or the rest.
    match first_record(buffer, Form::Fastq) {
        Some(next) => Step::Problem(next, reason),
        None if last => Step::Problem(buffer.len(), reason),
        None => Step::Incomplete,
    }
}

fn unexpected(found: &[u8], expected: &str) -> String {
    let line = found.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    format!("found {:?}, expected a record: {expected}", String::from_utf8_lossy(&line[..line.len().min(20)]))
}

fn next_line(buffer: &[u8], at: usize) -> Option<usize> {
    memchr(b'\n', buffer.get(at..)?).map(|found| at + found + 1)
}
