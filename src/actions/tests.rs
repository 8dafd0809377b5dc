//! What must hold of the parts; the whole is held against its definition from Python.

use super::Corpus;
use super::queue::Queue;
use super::state::{Rewrite, State};
use super::weight::{Scale, Weight, common_denominator};
use crate::bpe::pair::pair;
use crate::random::Random;

/// A sequence as sets and contexts, rewritten with the whole of it in view.
type Plain = Vec<(Vec<u32>, u32)>;

fn plain(nodes: &[u32], width: usize) -> Plain {
    let set = |node: &[u32]| node[1..].iter().copied().filter(|&token| token != 0).collect();
    nodes.chunks_exact(width).map(|node| (set(node), node[0])).collect()
}

fn rewrite_plainly(nodes: &mut Plain, (a, b): (u32, u32), n: u32) {
    for at in 0..nodes.len() {
        if a != b && nodes[at].0.contains(&a) && nodes[at].0.contains(&b) {
            nodes[at].0.retain(|&token| token != a && token != b);
            nodes[at].0.insert(0, n);
        }
        if at + 1 == nodes.len() {
            break;
        }
        let found = |node: &(Vec<u32>, u32), token: u32| node.0.iter().position(|&other| other == token);
        let context = nodes[at].1;
        if context != 0 {
            for (mine, other) in [(a, b), (b, a)] {
                for side in [at, at + 1] {
                    if nodes[at].1 == mine
                        && let Some(place) = found(&nodes[side], other)
                    {
                        nodes[side].0.remove(place);
                        nodes[at].1 = n;
                    }
                }
            }
        } else {
            for (left, right) in [(a, b), (b, a)] {
                if nodes[at].1 == 0
                    && let (Some(x), Some(y)) = (found(&nodes[at], left), found(&nodes[at + 1], right))
                {
                    nodes[at].0.remove(x);
                    nodes[at + 1].0.remove(y);
                    nodes[at].1 = n;
                }
            }
        }
    }
    loop {
        let before = nodes.clone();
        for at in 1..nodes.len() {
            if nodes[at].0.is_empty() && nodes[at - 1].1 != 0 {
                nodes[at].0 = vec![nodes[at - 1].1];
                nodes[at - 1].1 = 0;
            }
        }
        let last = nodes.len() - 1;
        let mut at = 0;
        nodes.retain(|node| {
            at += 1;
            !node.0.is_empty() || node.1 != 0 || at - 1 == last
        });
        if *nodes == before {
            return;
        }
    }
}

#[test]
fn a_local_rewrite_is_the_rewrite_of_the_whole_and_its_regions_hold_all_that_changed() {
    let mut random = Random(1);
    let mut below = |limit: u32| random.below(limit as usize) as u32;
    let (mut merged, mut gone) = (0, 0);
    for round in 0..3000 {
        let m = 1 + below(4) as usize;
        let values = 1 + below(3);
        let features: Vec<u32> =
            (0..8).flat_map(|_| (0..m as u32).map(|c| 1 + c * values + below(values)).collect::<Vec<_>>()).collect();
        let items: Vec<u32> = (0..1 + below(if round % 10 == 0 { 60 } else { 9 })).map(|_| below(8)).collect();
        let ends = [items.len() as u64];
        let mut state = State::new(&Corpus { features: &features, n_features: m, items: &items, ends: &ends });
        let mut done = Rewrite::default();
        let width = state.width;
        for n in 1 + values * m as u32..40 {
            let (x, y) = (1 + below(n - 1), 1 + below(n - 1));
            let (a, b) = (x.min(y), x.max(y));
            let before = state.sequence(0).to_vec();
            let mut expected = plain(&before, width);
            rewrite_plainly(&mut expected, (a, b), n);
            let changed = state.rewrite(0, (a, b), n, &mut done);
            let now = state.sequence(0);
            assert_eq!(plain(now, width), expected, "merging ({a}, {b}) in {:?}", plain(&before, width));
            assert_eq!(changed, before != now);
            if !changed {
                continue;
            }
            merged += 1;
            gone += (before.len() - now.len()) / width;
            assert_eq!(done.leftover, now.contains(&a) || now.contains(&b));
            // The sequence as it was, put together from what is unchanged and the regions as they were.
            let mut old = Vec::new();
            let mut at = 0;
            for region in &done.regions {
                old.extend_from_slice(&now[at * width..region.new_first * width]);
                assert_eq!(old.len() / width, region.old_first);
                old.extend_from_slice(done.old_nodes(region, width));
                at = region.new_first + region.new_len;
            }
            old.extend_from_slice(&now[at * width..]);
            assert_eq!(old, before);
            assert!(done.regions.windows(2).all(|two| two[0].new_first + two[0].new_len < two[1].new_first));
        }
    }
    assert!(merged > 5_000 && gone > 1_000, "{merged} merges took {gone} nodes");
}

#[test]
fn entries_come_by_weight_then_by_pair_and_only_with_the_weight_their_pair_has() {
    let mut queue = Queue::<i64>::new(2);
    for (weight, x) in [(5, 2), (5, 1), (9, 3), (1, 4), (40, 5), (7, 5), (2, 6)] {
        queue.push(weight, pair(x, x));
    }
    let now = |at: u64| if at == pair(5, 5) { 7 } else { [0, 5, 5, 9, 1, 0, 2][(at >> 32) as usize] };
    let order: Vec<_> = std::iter::from_fn(|| queue.pop(now)).map(|(weight, at)| (weight, at >> 32)).collect();
    assert_eq!(order, [(9, 3), (7, 5), (5, 1), (5, 2), (2, 6)]);
    // A weight that was reached twice comes up twice.
    queue.push(3, pair(1, 1));
    queue.push(2, pair(1, 1));
    queue.push(3, pair(1, 1));
    assert_eq!(std::iter::from_fn(|| queue.pop(|_| 3)).count(), 2);
}

#[test]
fn weights_are_whole_on_the_common_denominator() {
    let table = [(1, 1), (2, 4), (3, 36), (4, 144), (5, 3600), (6, 3600), (7, 176_400), (8, 705_600), (10, 6_350_400)];
    for (m, expected) in table {
        assert_eq!(common_denominator(m), Some(expected));
        let scale = Scale::<i64>::new(m, expected);
        for a in 1..=m {
            assert_eq!(scale.inside(a) as i128 * a as i128, 2 * expected);
            for b in 1..=m {
                assert_eq!(scale.across(a, b) as i128 * (a * b) as i128, expected);
            }
        }
    }
    assert_eq!(common_denominator(64), None);
}

#[test]
fn the_least_weight_is_compared_as_weights_are_saved() {
    // 0.07 * 3600 is a little over 252 in float64, but 252 / 3600 is 0.07.
    assert_eq!(i64::at_least(0.07, 3600), 252);
    assert_eq!(i64::at_least(0.0, 3600), 0);
    assert_eq!(i64::at_least(1.0 / 3.0, 36), 12);
}
