//! The sequences as they are, and how a merge rewrites one of them.
//!
//! A sequence is `R0 X0 R1 X1 ... Rk`: sets of tokens (regular nodes), and between two of them a slot for one token
//! that was merged across (context). A node is a set and the slot behind it: `1 + m` numbers, the slot first, 0 where
//! there is no token. Sets never grow, so a node never outgrows its place; nodes that end up empty are taken out and
//! the rest of the sequence moves up.
//!
//! A rewrite touches the few nodes around each place where the pair is; only those are kept as they were, to count
//! what changed.

use super::Corpus;
use crate::arrays::prefetch;

/// One node: the context slot behind the set, then the set.
pub type Node<'a> = &'a [u32];

/// The tokens in the set of a node.
#[inline(always)]
pub fn set_of(node: Node<'_>) -> &[u32] {
    let set = &node[1..];
    let size = set.iter().position(|&token| token == 0).unwrap_or(set.len());
    &set[..size]
}

fn drop_token(node: &mut [u32], token: u32) {
    let set = &mut node[1..];
    if let Some(at) = set.iter().position(|&other| other == token) {
        set[at..].rotate_left(1);
        let last = set.len() - 1;
        set[last] = 0;
    }
}

fn has(node: Node<'_>, token: u32) -> bool {
    node[1..].contains(&token)
}

/// All sequences.
pub struct State {
    nodes: Vec<u32>,
    /// Where each sequence begins in `nodes`, and how many nodes it has.
    spans: Vec<(usize, u32)>,
    /// Numbers in a node.
    pub width: usize,
}

/// Nodes of a sequence that a rewrite changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its first node, in the sequence as it was and as it is now.
    pub old_first: usize,
    /// The same, as it is now: nodes before it may have gone.
    pub new_first: usize,
    /// Its nodes as they were...
    pub old_len: usize,
    /// ... and how many they are now.
    pub new_len: usize,
    /// Where its nodes as they were begin in `Rewrite::old`, in nodes.
    pub saved: usize,
}

/// What a rewrite changed; reused from one to the next.
#[derive(Default)]
pub struct Rewrite {
    /// Ascending, with at least one unchanged node between two of them.
    pub regions: Vec<Region>,
    /// The nodes of all regions as they were.
    pub old: Vec<u32>,
    /// Whether a token of the pair is still in the sequence.
    pub leftover: bool,
    candidates: Vec<u32>,
    clean: Vec<u32>,
}

impl Rewrite {
    /// The nodes of a region as they were.
    pub fn old_nodes(&self, region: &Region, width: usize) -> &[u32] {
        &self.old[region.saved * width..(region.saved + region.old_len) * width]
    }
}

impl State {
    /// The sequences of `corpus`, nothing merged.
    pub fn new(corpus: &Corpus) -> Self {
        let (m, width) = (corpus.n_features, corpus.n_features + 1);
        let mut nodes = Vec::with_capacity(corpus.items.len() * width);
        for &item in corpus.items {
            nodes.push(0);
            nodes.extend_from_slice(&corpus.features[item as usize * m..][..m]);
        }
        let starts = std::iter::once(0).chain(corpus.ends.iter().copied());
        let spans = starts.zip(corpus.ends).map(|(start, end)| (start as usize * width, (end - start) as u32));
        State { nodes, spans: spans.collect(), width }
    }

    /// The nodes of a sequence, one after another.
    #[inline(always)]
    pub fn sequence(&self, number: u32) -> &[u32] {
        let (start, len) = self.spans[number as usize];
        &self.nodes[start..start + len as usize * self.width]
    }

    /// Asks for the beginning of a sequence that will be read soon.
    #[inline(always)]
    pub fn prefetch(&self, number: u32) {
        prefetch(self.nodes.as_ptr().wrapping_add(self.spans[number as usize].0));
    }

    /// Puts `n` for the pair (a, b) wherever it is in a sequence, left to right; false if it is nowhere.
    ///
    /// Inside a set, `n` takes the place of both. Across two sets it goes into the slot between them; a token in the
    /// slot merges with one of the set on its left, else on its right. Overlaps go to the left.
    pub fn rewrite(&mut self, number: u32, (a, b): (u32, u32), n: u32, done: &mut Rewrite) -> bool {
        let (start, len) = self.spans[number as usize];
        let (width, len) = (self.width, len as usize);
        let nodes = &mut self.nodes[start..start + len * width];
        done.regions.clear();
        done.old.clear();
        done.candidates.clear();
        find_nodes(nodes, width, a, b, &mut done.candidates);

        let mut candidates = std::mem::take(&mut done.candidates);
        for &at in &candidates {
            let at = at as usize;
            let node = &nodes[at * width..(at + 1) * width];
            if a != b && has(node, a) && has(node, b) {
                done.keep(nodes, width, at);
                let node = &mut nodes[at * width..(at + 1) * width];
                drop_token(node, a);
                drop_token(node, b);
                node[1..].rotate_right(1);
                node[1] = n;
            }
            if at + 1 == len {
                break;
            }
            let (left, right) = nodes[at * width..(at + 2) * width].split_at(width);
            let context = left[0];
            // Which token goes from the left set and which from the right; 0: none.
            let (from_left, from_right) = if context != 0 {
                let wanted = if context == a { b } else { a };
                match (context == a || context == b, has(left, wanted), has(right, wanted)) {
                    (true, true, _) => (wanted, 0),
                    (true, false, true) => (0, wanted),
                    _ => continue,
                }
            } else if has(left, a) && has(right, b) {
                (a, b)
            } else if has(left, b) && has(right, a) {
                (b, a)
            } else {
                continue;
            };
            done.keep(nodes, width, at);
            let (left, right) = nodes[at * width..(at + 2) * width].split_at_mut(width);
            left[0] = n;
            if from_left != 0 {
                drop_token(left, from_left);
            }
            if from_right != 0 {
                drop_token(right, from_right);
            }
        }
        if done.regions.is_empty() {
            done.candidates = candidates;
            return false;
        }
        done.leftover = candidates.iter().any(|&at| {
            let node = &nodes[at as usize * width..(at as usize + 1) * width];
            node.contains(&a) || node.contains(&b)
        });
        candidates.clear();
        done.candidates = candidates;
        self.settle(number, done);
        true
    }

    /// Moves context into sets that were emptied, takes out nodes with nothing in them, and closes the gaps.
    fn settle(&mut self, number: u32, done: &mut Rewrite) {
        let (start, len) = self.spans[number as usize];
        let (width, len) = (self.width, len as usize);
        let nodes = &mut self.nodes[start..start + len * width];
        let mut write = 0; // where the next region begins once the gaps before it are closed
        let mut read = 0; // the first node that has not moved yet
        for at in 0..done.regions.len() {
            let mut region = done.regions[at];
            let end = region.old_first + region.old_len;
            let clean = &mut done.clean;
            clean.clear();
            clean.extend_from_slice(&nodes[region.old_first * width..end * width]);
            tidy(clean, width, end == len);
            region.new_len = clean.len() / width;
            if write != read {
                nodes.copy_within(read * width..region.old_first * width, write * width);
            }
            region.new_first = write + (region.old_first - read);
            nodes[region.new_first * width..][..clean.len()].copy_from_slice(clean);
            write = region.new_first + region.new_len;
            read = end;
            done.regions[at] = region;
        }
        if write != read {
            nodes.copy_within(read * width.., write * width);
            self.spans[number as usize].1 = (write + len - read) as u32;
        }
        for at in 0..done.regions.len() {
            let region = done.regions[at];
            let new = self.sequence(number);
            done.regions[at] = trim(region, done.old_nodes(&region, width), new, width);
        }
    }
}

/// Leaves out of a region what is the same at its ends.
fn trim(mut region: Region, old: &[u32], new: &[u32], width: usize) -> Region {
    let new = &new[region.new_first * width..(region.new_first + region.new_len) * width];
    let (mut old, mut new) = (old.chunks_exact(width), new.chunks_exact(width));
    let (before_old, before_new) = (old.clone(), new.clone());
    let front = before_old.zip(before_new).take_while(|(old, new)| old == new).count();
    for _ in 0..front {
        old.next();
        new.next();
    }
    let back = old.rev().zip(new.rev()).take_while(|(old, new)| old == new).count();
    region.old_first += front;
    region.new_first += front;
    region.saved += front;
    region.old_len -= front + back;
    region.new_len -= front + back;
    region
}

impl Rewrite {
    /// Keeps the nodes around `at` as they are: those that a merge there, and tidying up after it, can change.
    ///
    /// A merge changes node `at` and the set after it. If the set is emptied, it takes the context before it, and
    /// the node of that context goes if its set is empty too: one node further to the left, and never more, since
    /// no two nodes with empty sets follow each other.
    fn keep(&mut self, nodes: &[u32], width: usize, at: usize) {
        let first = at.saturating_sub(1);
        let end = (at + 2).min(nodes.len() / width);
        if let Some(last) = self.regions.last_mut() {
            let last_end = last.old_first + last.old_len;
            if first <= last_end {
                if end > last_end {
                    self.old.extend_from_slice(&nodes[last_end * width..end * width]);
                    last.old_len = end - last.old_first;
                }
                return;
            }
        }
        let saved = self.old.len() / width;
        self.old.extend_from_slice(&nodes[first * width..end * width]);
        let old_len = end - first;
        self.regions.push(Region { old_first: first, new_first: first, old_len, new_len: old_len, saved });
    }
}

/// The nodes that have `a` or `b`, ascending.
fn find_nodes(nodes: &[u32], width: usize, a: u32, b: u32, found: &mut Vec<u32>) {
    // Whole blocks without a branch inside, which the compiler makes vectors of; most have neither token.
    const BLOCK: usize = 32;
    for (block, tokens) in nodes.chunks(BLOCK).enumerate() {
        let hit = tokens.iter().fold(false, |hit, &token| hit | (token == a) | (token == b));
        if hit {
            for (at, _) in tokens.iter().enumerate().filter(|(_, token)| **token == a || **token == b) {
                let node = ((block * BLOCK + at) / width) as u32;
                if found.last() != Some(&node) {
                    found.push(node);
                }
            }
        }
    }
}

/// Until nothing changes: an empty set takes the context before it; a node with an empty set and no context goes,
/// unless it is the last of the sequence.
fn tidy(nodes: &mut Vec<u32>, width: usize, at_end: bool) {
    loop {
        let mut changed = false;
        for at in 1..nodes.len() / width {
            if nodes[at * width + 1] == 0 && nodes[(at - 1) * width] != 0 {
                nodes[at * width + 1] = nodes[(at - 1) * width];
                nodes[(at - 1) * width] = 0;
                changed = true;
            }
        }
        let mut at = 0;
        while at < nodes.len() / width {
            let last = at_end && at + 1 == nodes.len() / width;
            if nodes[at * width] == 0 && nodes[at * width + 1] == 0 && !last {
                nodes.drain(at * width..(at + 1) * width);
                changed = true;
            } else {
                at += 1;
            }
        }
        if !changed {
            return;
        }
    }
}
