//! Characters that are a word by themselves, and their ids: one table lookup each, without the cache.
//!
//! Ideographs mostly, to WordPiece and to vocabularies of SentencePiece that join few of them. Whole runs of such
//! characters are one word of a batch, whose ids are known when it is found.

use super::joined::{Joined, code_point};

/// Code points in the table: those of up to three bytes.
const CODE_POINTS: u32 = 0x1_0000;

/// Up to three ids of 20 bits, their count, and two flags. All bits: not a word by itself, or its ids do not fit.
type Entry = u64;
const NO_ENTRY: Entry = Entry::MAX;
const ID_BITS: u32 = 20;
const COUNT_AT: u32 = 3 * ID_BITS;
/// Some token has a character before, or after, this one.
const BEFORE: Entry = 1 << 62;
const AFTER: Entry = 1 << 63;

/// Characters in a run at most: with three ids each, the runs of a batch take 400 KB.
const LONGEST: usize = 64;

/// The ids of each character that may stand alone.
#[derive(Default)]
pub struct Alone(Vec<Entry>);

impl Alone {
    /// `ids` appends the ids of a character that may be a word by itself, or says false. It is one wherever `joined`
    /// allows a cut on both sides; everywhere, if None.
    pub fn new(joined: Option<&Joined>, mut ids: impl FnMut(char, &mut Vec<u32>) -> bool) -> Alone {
        let mut found = vec![];
        let entries = (0..CODE_POINTS).map(|code_point| {
            found.clear();
            let alone = char::from_u32(code_point).is_some_and(|character| ids(character, &mut found));
            if !alone || found.len() > 3 || found.iter().any(|&id| id >= (1 << ID_BITS) - 1) {
                return NO_ENTRY;
            }
            let ids = found.iter().rev().fold(0, |all, &id| all << ID_BITS | Entry::from(id));
            ids | (found.len() as Entry) << COUNT_AT
        });
        let mut entries: Vec<Entry> = entries.collect();
        if let Some(joined) = joined {
            for (left, right) in joined.pairs() {
                for (character, flag) in [(left, AFTER), (right, BEFORE)] {
                    if let Some(entry) = entries.get_mut(character as usize) {
                        *entry |= flag;
                    }
                }
            }
        }
        Alone(entries)
    }

    /// Appends the ids of the characters from `at` on that stand alone, up to a bound, and gives where they end. A
    /// word starts at `at`, which is inside the text.
    #[inline(always)]
    pub fn run(&self, joined: Option<&Joined>, text: &[u8], mut at: usize, ids: &mut Vec<u32>) -> usize {
        ids.reserve(3 * LONGEST);
        let (mut character, mut len) = code_point(&text[at..]);
        let mut entry = self.entry(character);
        for _ in 0..LONGEST {
            if entry == NO_ENTRY {
                break;
            }
            let end = at + len;
            let this = entry;
            if end < text.len() {
                let left = character;
                (character, len) = code_point(&text[end..]);
                entry = self.entry(character);
                if this & AFTER != 0
                    && entry & BEFORE != 0
                    && joined.is_some_and(|joined| !joined.is_cut(left, character))
                {
                    break;
                }
            } else {
                entry = NO_ENTRY;
            }
            at = end;
            let before = ids.len();
            // SAFETY: room for three ids of each character was reserved; the count is at most three.
            unsafe {
                let out = ids.as_mut_ptr().add(before);
                for place in 0..3 {
                    out.add(place).write((this >> (ID_BITS * place as u32)) as u32 & ((1 << ID_BITS) - 1));
                }
                ids.set_len(before + (this >> COUNT_AT & 3) as usize);
            }
        }
        at
    }

    #[inline(always)]
    fn entry(&self, character: u32) -> Entry {
        if character < CODE_POINTS { self.0[character as usize] } else { NO_ENTRY }
    }
}
