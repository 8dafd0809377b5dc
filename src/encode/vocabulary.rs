//! A vocabulary -> symbols, numbered so that merging is a search for the lowest number, and the table of their pairs.
//!
//! In: the bytes of each token, and either a list of merges (HF `tokenizers`) or ranks (tiktoken, SentencePiece: any
//! two neighbours whose concatenation is a token merge, the lowest rank first). Out: symbols. The initial ones (single
//! bytes or characters) come first, then what merges make, in the order in which merges are tried; so "the
//! lowest rank, the leftmost on a tie" is the least symbol. Tokens that no merge makes come last.
//! The plain version of what these tables do is `reference/encode.py`.

use super::pairs::{NOBODY, Pairs};
use crate::bpe::pair::{PairMap, pair};
use crate::error::{Error, Result};
use std::collections::HashMap;

/// What merging starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Single bytes: byte-level BPE.
    Byte,
    /// Characters: SentencePiece BPE.
    Character,
}

impl Unit {
    /// The length of the first unit of `word`, which is not empty.
    #[inline(always)]
    pub fn first(self, word: &[u8]) -> usize {
        match self {
            Unit::Byte => 1,
            Unit::Character => character_len(word[0]).min(word.len()),
        }
    }
}

/// Bytes of the character that begins with `first`, in valid UTF-8.
#[inline(always)]
pub fn character_len(first: u8) -> usize {
    match first {
        ..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    }
}

/// The id that is written for each symbol. In most vocabularies it is the symbol itself, or a constant more: then
/// the table is not read, which saves a cache line per token.
pub struct IdsOfSymbols {
    table: Vec<u32>,
    constant: Option<u32>,
}

impl IdsOfSymbols {
    fn new(table: Vec<u32>) -> IdsOfSymbols {
        let first = table.first().copied().unwrap_or(0);
        let shifted = table.iter().enumerate().all(|(symbol, &id)| id.checked_sub(first) == Some(symbol as u32));
        IdsOfSymbols { table, constant: shifted.then_some(first) }
    }

    /// The id of a symbol.
    #[inline(always)]
    pub fn get(&self, symbol: u32) -> u32 {
        match self.constant {
            Some(constant) => symbol.wrapping_add(constant),
            None => self.table[symbol as usize],
        }
    }

    /// All of them, by symbol.
    pub fn all(&self) -> &[u32] {
        &self.table
    }
}

/// Symbols and their merges.
pub struct Symbols {
    bytes: Vec<u8>,
    /// Where the bytes of each symbol end; one entry more than there are symbols, the first is 0.
    ends: Vec<u32>,
    /// The id that is written for each symbol.
    pub ids: IdsOfSymbols,
    /// The two symbols that merge into each symbol; itself twice for an initial one, [`NOBODY`] for one that no merge
    /// makes.
    pub halves: Vec<(u32, u32)>,
    pub pairs: Pairs,
    pub unit: Unit,
    /// Whether the bytes of each symbol encode to that symbol.
    itself: Vec<bool>,
}

impl Symbols {
    /// `tokens` are distinct; `ids[i]` is written for token i. `merges` are pairs of indexes into `tokens`, best first;
    /// None if the order of `tokens` is their rank.
    pub fn new(tokens: &[&[u8]], ids: &[u32], merges: Option<&[[u32; 2]]>, unit: Unit) -> Result<Symbols> {
        if tokens.len() >= NOBODY as usize {
            return Err(Error::Tokenizer(format!(
                "a vocabulary of {} tokens; the encoder takes at most {}. Use the tokenizer's own library.",
                tokens.len(),
                NOBODY - 1
            )));
        }
        let mut index = HashMap::with_capacity(tokens.len());
        for (token, &bytes) in tokens.iter().enumerate() {
            if bytes.is_empty() || index.insert(bytes, token as u32).is_some() {
                let shown = String::from_utf8_lossy(bytes);
                return Err(Error::Tokenizer(format!(
                    "token {token} of the vocabulary is {shown:?}, which is empty or there before; expected each once."
                )));
            }
        }
        let is_initial = |bytes: &[u8]| unit.first(bytes) == bytes.len();
        let (ranked, made) = match merges {
            None => ((0..tokens.len() as u32).filter(|&t| !is_initial(tokens[t as usize])).collect(), None),
            Some(merges) => {
                let made = merged(tokens, &index, merges, unit)?;
                (made.iter().map(|&(token, _)| token).collect::<Vec<u32>>(), Some(made))
            }
        };
        // Initial tokens, then the ranked ones, then the rest.
        let mut order: Vec<u32> = (0..tokens.len() as u32).filter(|&t| is_initial(tokens[t as usize])).collect();
        let initial = order.len();
        order.extend(&ranked);
        let mut symbol_of = vec![NOBODY; tokens.len()];
        for (symbol, &token) in order.iter().enumerate() {
            symbol_of[token as usize] = symbol as u32;
        }
        for token in 0..tokens.len() as u32 {
            if symbol_of[token as usize] == NOBODY {
                symbol_of[token as usize] = order.len() as u32;
                order.push(token);
            }
        }
        let mut halves = vec![(NOBODY, NOBODY); order.len()];
        for (symbol, halves) in halves.iter_mut().enumerate().take(initial) {
            *halves = (symbol as u32, symbol as u32);
        }
        match made {
            Some(made) => {
                for (token, [left, right]) in made {
                    halves[symbol_of[token as usize] as usize] = (symbol_of[left as usize], symbol_of[right as usize]);
                }
            }
            None => {
                let by_bytes = tokens.iter().copied().zip(symbol_of).collect();
                find_halves(tokens, &order, initial, &by_bytes, unit, &mut halves)?;
            }
        }
        let list: Vec<(u32, u32, u32)> = (initial..order.len())
            .filter(|&symbol| halves[symbol].0 != NOBODY)
            .map(|symbol| (halves[symbol].0, halves[symbol].1, symbol as u32))
            .collect();
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for &token in &order {
            bytes.extend_from_slice(tokens[token as usize]);
            ends.push(u32::try_from(bytes.len()).map_err(|_| {
                Error::Tokenizer("the tokens of the vocabulary take more than 4 GiB; use its own library.".into())
            })?);
        }
        let ids = IdsOfSymbols::new(order.iter().map(|&token| ids[token as usize]).collect());
        // The halves of ranks were found by encoding each token; a list of merges may hold some that never happen.
        let itself = halves.iter().map(|&(left, _)| left != NOBODY).collect();
        let mut symbols = Symbols { bytes, ends, ids, halves, pairs: Pairs::new(&list), unit, itself };
        if merges.is_some() {
            symbols.itself = symbols.find_itself();
        }
        Ok(symbols)
    }

    fn find_itself(&self) -> Vec<bool> {
        let units: HashMap<&[u8], u32> = self.initial().collect();
        let mut parts = vec![];
        (0..self.len() as u32)
            .map(|symbol| {
                parts.clear();
                parts.extend(
                    units_of(self.bytes(symbol), self.unit).map(|unit| units.get(unit).copied().unwrap_or(NOBODY)),
                );
                self.merge_plainly(&mut parts);
                parts == [symbol]
            })
            .collect()
    }

    /// Whether the bytes of `symbol` encode to it.
    pub fn is_itself(&self, symbol: u32) -> bool {
        self.itself[symbol as usize]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ids.all().len()
    }

    /// The bytes of all, and where each ends, after a 0.
    pub fn flat(&self) -> (&[u8], &[u32]) {
        (&self.bytes, &self.ends)
    }

    /// The bytes of one.
    #[inline(always)]
    pub fn bytes(&self, symbol: u32) -> &[u8] {
        &self.bytes[self.ends[symbol as usize] as usize..self.ends[symbol as usize + 1] as usize]
    }

    /// The symbol of each unit that has one.
    pub fn initial(&self) -> impl Iterator<Item = (&[u8], u32)> {
        (0..self.len() as u32)
            .take_while(|&symbol| self.halves[symbol as usize] == (symbol, symbol))
            .map(|symbol| (self.bytes(symbol), symbol))
    }

    /// Merges `parts` until nothing can be merged: the definition, quick enough for a few dozen of them.
    pub fn merge_plainly(&self, parts: &mut Vec<u32>) {
        while let Some((symbol, at)) = parts
            .windows(2)
            .enumerate()
            .map(|(at, pair)| (self.pairs.get(pair[0], pair[1]), at))
            .min()
            .filter(|&(symbol, _)| symbol != NOBODY)
        {
            parts[at] = symbol;
            parts.remove(at + 1);
        }
    }
}

/// For every token that a merge makes: the token and the merge, in the order of the merges.
fn merged(
    tokens: &[&[u8]],
    index: &HashMap<&[u8], u32>,
    merges: &[[u32; 2]],
    unit: Unit,
) -> Result<Vec<(u32, [u32; 2])>> {
    let mut made = Vec::with_capacity(merges.len());
    let mut times = vec![0u8; tokens.len()];
    let mut joined = Vec::new();
    for (rank, &[left, right]) in merges.iter().enumerate() {
        let halves = [left, right].map(|token| tokens.get(token as usize).copied());
        let [Some(left_bytes), Some(right_bytes)] = halves else {
            return Err(Error::Tokenizer(format!(
                "merge {rank} is ({left}, {right}), and there are {} tokens; expected indexes of tokens.",
                tokens.len()
            )));
        };
        joined.clear();
        joined.extend_from_slice(left_bytes);
        joined.extend_from_slice(right_bytes);
        let Some(&token) = index.get(joined.as_slice()) else {
            return Err(Error::Tokenizer(format!(
                "merge {rank} makes {:?}, which is not in the vocabulary.",
                String::from_utf8_lossy(&joined)
            )));
        };
        times[token as usize] = times[token as usize].saturating_add(1);
        made.push((token, [left, right]));
    }
    if times.iter().all(|&times| times <= 1) {
        return Ok(made);
    }
    // Several merges spell one token: only the last step of its own encoding can occur. Of a pair that is listed twice
    // the last counts, as in HF `tokenizers`.
    let ranks: HashMap<[u32; 2], (usize, u32)> =
        made.iter().enumerate().map(|(rank, &(token, pair))| (pair, (rank, token))).collect();
    let mut last_steps: HashMap<u32, Option<usize>> = HashMap::new();
    for token in (0..tokens.len() as u32).filter(|&token| times[token as usize] > 1) {
        last_steps.insert(token, last_step(tokens, index, &ranks, token, unit));
    }
    Ok(made
        .into_iter()
        .enumerate()
        .filter(|(rank, (token, _))| last_steps.get(token).is_none_or(|last| *last == Some(*rank)))
        .map(|(_, made)| made)
        .collect())
}

/// The rank of the merge that ends the encoding of `token` by itself; None if that does not end with the token.
fn last_step(
    tokens: &[&[u8]],
    index: &HashMap<&[u8], u32>,
    ranks: &HashMap<[u32; 2], (usize, u32)>,
    token: u32,
    unit: Unit,
) -> Option<usize> {
    let mut parts =
        units_of(tokens[token as usize], unit).map(|unit| index.get(unit).copied()).collect::<Option<Vec<_>>>()?;
    let mut last = None;
    while let Some((rank, made, at)) = parts
        .windows(2)
        .enumerate()
        .filter_map(|(at, pair)| ranks.get(&[pair[0], pair[1]]).map(|&(rank, made)| (rank, made, at)))
        .min_by_key(|&(rank, _, at)| (rank, at))
    {
        parts[at] = made;
        parts.remove(at + 1);
        last = Some(rank);
    }
    last.filter(|_| parts == [token])
}

fn units_of(mut bytes: &[u8], unit: Unit) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let (first, rest) = bytes.split_at(unit.first(bytes));
        bytes = rest;
        Some(first)
    })
}

/// Finds the two halves of each token of a vocabulary of ranks: what is left of its bytes before its own merge.
///
/// Tokens come in the order of their ranks, so mostly all that merging a token needs is there when its turn comes. Where
/// it is not (a part has a higher rank, or the token cannot be reached at all), the definition decides: any two
/// neighbours merge whose bytes together are a token.
fn find_halves(
    tokens: &[&[u8]],
    order: &[u32],
    initial: usize,
    by_bytes: &HashMap<&[u8], u32>,
    unit: Unit,
    halves: &mut [(u32, u32)],
) -> Result<()> {
    let mut pairs = PairMap::with_capacity_and_hasher(order.len(), Default::default());
    let merged = |pairs: &PairMap<u32>, left, right| pairs.get(&pair(left, right)).copied().unwrap_or(NOBODY);
    let (mut parts, mut ranks) = (Vec::new(), Vec::new());
    for symbol in initial..order.len() {
        let bytes = tokens[order[symbol] as usize];
        parts.clear();
        parts.extend(units_of(bytes, unit).map(|unit| by_bytes.get(unit).copied().unwrap_or(NOBODY)));
        if parts.contains(&NOBODY) {
            // A byte without a token is no part of any text, but a character without one is, and SentencePiece merges it.
            if unit == Unit::Character && border_by_definition(bytes, by_bytes, unit).is_some() {
                return Err(Error::Tokenizer(format!(
                    "token {:?} of the vocabulary has a character that is no token itself; expected all characters of \
                     tokens to be tokens. Use the tokenizer's own library.",
                    String::from_utf8_lossy(bytes)
                )));
            }
            continue;
        }
        ranks.clear();
        ranks.extend(parts.windows(2).map(|two| merged(&pairs, two[0], two[1])));
        while parts.len() > 2 {
            let (at, made) = ranks.iter().copied().enumerate().min_by_key(|&(_, rank)| rank).unwrap_or((0, NOBODY));
            if made == NOBODY {
                break;
            }
            parts[at] = made;
            parts.remove(at + 1);
            ranks.remove(at);
            if at > 0 {
                ranks[at - 1] = merged(&pairs, parts[at - 1], made);
            }
            if at < ranks.len() {
                ranks[at] = merged(&pairs, made, parts[at + 1]);
            }
        }
        let found = match parts[..] {
            [left, right] => Some((left, right)),
            _ => halves_by_definition(bytes, by_bytes, unit),
        };
        if let Some((left, right)) = found {
            pairs.insert(pair(left, right), symbol as u32);
            halves[symbol] = (left, right);
        }
    }
    Ok(())
}

fn halves_by_definition(bytes: &[u8], by_bytes: &HashMap<&[u8], u32>, unit: Unit) -> Option<(u32, u32)> {
    let (left, right) = bytes.split_at(border_by_definition(bytes, by_bytes, unit)?);
    Some((*by_bytes.get(left)?, *by_bytes.get(right)?))
}

/// Where the last two parts of `bytes` meet before they merge; None if merging ends with more than two.
fn border_by_definition(bytes: &[u8], by_bytes: &HashMap<&[u8], u32>, unit: Unit) -> Option<usize> {
    // Where each part ends.
    let mut ends: Vec<usize> = units_of(bytes, unit)
        .scan(0, |end, unit| {
            *end += unit.len();
            Some(*end)
        })
        .collect();
    while ends.len() > 2 {
        let start_of = |part: usize| if part == 0 { 0 } else { ends[part - 1] };
        let (_, part) = (0..ends.len() - 1)
            .filter_map(|part| by_bytes.get(&bytes[start_of(part)..ends[part + 1]]).map(|&symbol| (symbol, part)))
            .min()?;
        ends.remove(part);
    }
    let [border, _] = ends[..] else { return None };
    Some(border)
}
