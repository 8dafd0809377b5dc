//! Integers <-> text: a document of integers is their digits, with a space after each.
//!
//! So every room that holds, hashes, shows and compares documents knows what to do with one, and the text of a token is
//! what it stands for. Read back, numbers may have white space or commas between them.

use crate::arrays::slices;

/// Documents of integers as text: every number with a space after it.
pub fn write(values: &[i64], ends: &[i64]) -> (Vec<u8>, Vec<i64>) {
    let mut data = Vec::with_capacity(values.len() * 5);
    let mut text_ends = Vec::with_capacity(ends.len());
    for document in slices(values, ends) {
        document.iter().for_each(|&value| push(value, &mut data));
        text_ends.push(data.len() as i64);
    }
    (data, text_ends)
}

/// Appends a number and the space after it.
pub fn push(value: i64, data: &mut Vec<u8>) {
    let (mut digits, mut at, mut left) = ([b' '; 21], 20, value.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        data.push(b'-');
    }
    data.extend_from_slice(&digits[at..]);
}

/// The integers of documents, and where each document ends; of those that are something else, the number and where.
pub fn read(data: &[u8], ends: &[i64]) -> (Vec<i64>, Vec<i64>, Vec<(u64, u64)>) {
    let mut values = Vec::with_capacity(data.len() / 3);
    let (mut value_ends, mut problems) = (Vec::with_capacity(ends.len()), vec![]);
    for (number, document) in (0..).zip(slices(data, ends)) {
        let from = values.len();
        if let Err(at) = read_one(document, &mut values) {
            values.truncate(from);
            problems.push((number, at as u64));
        }
        value_ends.push(values.len() as i64);
    }
    (values, value_ends, problems)
}

/// Fails with the place of what is no integer of 64 bits.
fn read_one(text: &[u8], values: &mut Vec<i64>) -> Result<(), usize> {
    let between = |byte: u8| byte == b' ' || byte == b',' || byte.is_ascii_whitespace();
    let mut at = 0;
    while at < text.len() {
        if between(text[at]) {
            at += 1;
            continue;
        }
        let start = at;
        let negative = text[at] == b'-';
        at += usize::from(negative);
        let (first, mut value) = (at, 0i64);
        while let Some(digit) = text.get(at).filter(|byte| byte.is_ascii_digit()) {
            // Down from zero: there is one more negative number.
            let next = value.checked_mul(10).and_then(|value| value.checked_sub(i64::from(digit - b'0')));
            value = next.ok_or(start)?;
            at += 1;
        }
        if at == first || text.get(at).is_some_and(|&byte| !between(byte)) {
            return Err(start);
        }
        values.push(if negative { value } else { value.checked_neg().ok_or(start)? });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_from_their_text() {
        let values = [0, -1, 17, i64::MAX, i64::MIN, 1_000_000];
        let (data, ends) = write(&values, &[2, 2, 6]);
        assert_eq!(&data[..ends[0] as usize], b"0 -1 ");
        assert_eq!(read(&data, &ends), (values.to_vec(), vec![2, 2, 6], vec![]));
        let text = b" 1,\n2\t-0 3x 9223372036854775808 - 4";
        assert_eq!(
            read(text, &[8, 12, 32, 34, 35]),
            (vec![1, 2, 0, 4], vec![3, 3, 3, 3, 4], vec![(1, 1), (2, 0), (3, 0)])
        );
    }
}
