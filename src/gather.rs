//! Windows of tokens -> rows of inputs and labels, straight into the caller's buffers.
//!
//! In: the ids of some files, and which pieces of them make up each row. Out: for each row of `window` columns its
//! inputs and its labels, where a label is the token after the input above it. A row is made of at most
//! `window + 1` tokens; where it has fewer, inputs are `pad` and labels are `IGNORED`.
//! The plain version this must equal is `reference/windows.py`.

/// The label of a place that is not trained on, as torch's cross entropy has it.
pub const IGNORED: i64 = -100;

/// The ids of one file.
#[derive(Clone, Copy)]
pub enum Tokens<'a> {
    /// Of a vocabulary of up to 65,536.
    Narrow(&'a [u16]),
    /// Of a larger one.
    Wide(&'a [u32]),
}

impl Tokens<'_> {
    fn len(&self) -> usize {
        match self {
            Tokens::Narrow(ids) => ids.len(),
            Tokens::Wide(ids) => ids.len(),
        }
    }
}

/// What rows are made of.
pub struct Rows<'a> {
    /// The files.
    pub tokens: &'a [Tokens<'a>],
    /// Four numbers for each piece: the row it belongs to, its file, where it begins there, how many tokens it has.
    /// The pieces of one row come in order; rows may come in any.
    pub pieces: &'a [i64],
    /// Of each row, how many labels at its beginning are not trained on.
    pub masked: &'a [i64],
    /// Columns of a row.
    pub window: usize,
    /// What stands where a row has no more tokens.
    pub pad: i64,
}

/// An id as the caller wants it.
pub trait Id: Copy {
    /// From an id, `pad` or `IGNORED`.
    fn of(id: i64) -> Self;
}

impl Id for i32 {
    #[inline(always)]
    fn of(id: i64) -> Self {
        id as i32
    }
}

impl Id for i64 {
    #[inline(always)]
    fn of(id: i64) -> Self {
        id
    }
}

/// Fills `inputs` and `labels`, both of as many rows as `masked` has; on an error, which says what does not fit, they
/// may be half full.
///
/// Ids are widened on the way, twice, as the second reading finds them in the nearest cache; a copy of the labels from
/// the inputs would read four times as many bytes.
pub fn gather<T: Id>(rows: &Rows<'_>, inputs: &mut [T], labels: &mut [T]) -> Result<(), String> {
    let (window, count) = (rows.window, rows.masked.len());
    if inputs.len() != count * window || labels.len() != count * window {
        return Err(format!(
            "room for {} inputs and {} labels; expected {count} rows of {window}",
            inputs.len(),
            labels.len()
        ));
    }
    let mut filled = vec![0usize; count];
    for piece in rows.pieces.chunks_exact(4) {
        let &[row, file, start, length] = piece else { continue };
        let fits = usize::try_from(row).ok().filter(|&row| row < count).zip(
            usize::try_from(file)
                .ok()
                .and_then(|file| rows.tokens.get(file))
                .zip(span(start, length))
                .filter(|(tokens, span)| span.end <= tokens.len()),
        );
        let Some((row, (tokens, span))) = fits.filter(|(row, (_, span))| filled[*row] + span.len() <= window + 1)
        else {
            return Err(format!("a piece of {length} tokens at {start} of file {file} does not fit in row {row}"));
        };
        let at = filled[row];
        filled[row] += span.len();
        let (inputs, labels) =
            (&mut inputs[row * window..(row + 1) * window], &mut labels[row * window..(row + 1) * window]);
        // The token of column c is the input of c and the label of c - 1.
        let (first, last) = (span.start, span.end);
        let input = first..last.min(first + (window - at.min(window)));
        widen(tokens, input, &mut inputs[at.min(window)..]);
        let skipped = usize::from(at == 0).min(last - first);
        widen(tokens, first + skipped..last, &mut labels[(at + skipped).saturating_sub(1)..]);
    }
    for (row, (&filled, &masked)) in filled.iter().zip(rows.masked).enumerate() {
        let (inputs, labels) =
            (&mut inputs[row * window..(row + 1) * window], &mut labels[row * window..(row + 1) * window]);
        inputs[filled.min(window)..].fill(T::of(rows.pad));
        labels[filled.saturating_sub(1)..].fill(T::of(IGNORED));
        labels[..(masked.max(0) as usize).min(window)].fill(T::of(IGNORED));
    }
    Ok(())
}

fn span(start: i64, length: i64) -> Option<std::ops::Range<usize>> {
    let (start, length) = (usize::try_from(start).ok()?, usize::try_from(length).ok()?);
    Some(start..start.checked_add(length)?)
}

fn widen<T: Id>(tokens: &Tokens<'_>, span: std::ops::Range<usize>, out: &mut [T]) {
    match tokens {
        Tokens::Narrow(ids) => out.iter_mut().zip(&ids[span]).for_each(|(out, &id)| *out = T::of(id.into())),
        Tokens::Wide(ids) => out.iter_mut().zip(&ids[span]).for_each(|(out, &id)| *out = T::of(id.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows<'a>(tokens: &'a [Tokens<'a>], pieces: &'a [i64], masked: &'a [i64]) -> Rows<'a> {
        Rows { tokens, pieces, masked, window: 3, pad: 9 }
    }

    #[test]
    fn pieces_that_do_not_fit_are_refused() {
        let files = [Tokens::Narrow(&[1, 2, 3, 4, 5])];
        for piece in
            [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 4, 2], [0, 0, -1, 1], [0, 0, 0, 5], [0, 0, 0, -1], [-1, 0, 0, 1]]
        {
            let (mut inputs, mut labels) = ([0i64; 3], [0i64; 3]);
            assert!(gather(&rows(&files, &piece, &[0]), &mut inputs, &mut labels).is_err(), "{piece:?}");
        }
        assert!(gather(&rows(&files, &[], &[0]), &mut [0i64; 2], &mut [0i64; 3]).is_err());
    }
}
