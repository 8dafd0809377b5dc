//! The arithmetic of weights: whole numbers on a common denominator. That of float64 is in [`super::published`].
//!
//! A set of n tokens gives each pair in it 2/n, two neighbouring sets of a and b give each pair across 1/(ab). With
//! m features, lcm(1..m)^2 is a denominator of all of them. Sums stay far from the end of the type: it is chosen by a
//! bound computed up front, and the one sum that has no bound is checked.

use super::pairs::Lists;
use super::train::Trainer;
use std::cmp::Ordering;
use std::fmt::Debug;
use std::ops::{Add, AddAssign, Sub};

/// A weight, or a difference of two.
/// Sums with `+` stay within the bound computed up front.
pub trait Weight:
    Copy + Debug + Default + PartialOrd + Add<Output = Self> + AddAssign + Sub<Output = Self> + Send + Sync + 'static
{
    /// `numerator / denominator` on the denominator `common`.
    fn fraction(numerator: u32, denominator: u32, common: i128) -> Self;
    /// The smallest weight that is at least `weight`.
    fn at_least(weight: f64, common: i128) -> Self;
    /// A sum without a bound; None if it does not fit.
    fn checked_plus(self, other: Self) -> Option<Self>;
    /// Whether an entry of the queue still has the weight it was queued with.
    fn same(self, other: Self) -> bool;
    /// Whether a change is too small to count.
    fn is_nothing(self) -> bool;
    /// Larger or smaller; weights are never NaN.
    fn order(&self, other: &Self) -> Ordering;
    /// Half of it, rounded down.
    fn half(self) -> Self;
    /// As a number to show.
    fn shown(self, common: i128) -> f64;

    // What depends on the order of sums. Whole numbers have the same sum in any order.

    /// Threads that may count pairs, of those requested.
    fn threads(asked: usize) -> usize {
        asked.clamp(1, 64)
    }
    /// The sequences listed for a pair, each once, in the order in which they are rewritten.
    fn in_order(listed: &[u32]) -> Vec<u32> {
        let mut ordered = listed.to_vec();
        ordered.sort_unstable();
        ordered.dedup();
        ordered
    }
    /// Weighs the pairs that a rewrite of `sequence` may have changed, before and after.
    fn count(trainer: &mut Trainer<'_, Self>, sequence: u32, merged: (u32, u32)) {
        trainer.count_regions(sequence, merged);
    }
    /// Lists a sequence that has the pair `number` now. Twice is no harm: `in_order` drops doubles.
    fn list(lists: &mut Lists, number: u32, sequence: u32) {
        lists.push(number, sequence);
    }
    /// Drops the sequences in which a merged pair no longer is: nobody needs to look there again.
    fn relist(lists: &mut Lists, number: u32, kept: &[u32]) {
        lists.replace(number, kept);
    }
}

macro_rules! whole {
    ($type:ty) => {
        impl Weight for $type {
            fn fraction(numerator: u32, denominator: u32, common: i128) -> Self {
                (common * numerator as i128 / denominator as i128) as $type
            }
            fn at_least(weight: f64, common: i128) -> Self {
                // Compared as the saved weights are: as float64.
                let mut least = (weight * common as f64).ceil() as $type;
                while least > 0 && (least - 1).shown(common) >= weight {
                    least -= 1;
                }
                while least.shown(common) < weight && least < <$type>::MAX {
                    least += 1;
                }
                least
            }
            fn checked_plus(self, other: Self) -> Option<Self> {
                self.checked_add(other)
            }
            fn same(self, other: Self) -> bool {
                self == other
            }
            fn is_nothing(self) -> bool {
                self == 0
            }
            fn order(&self, other: &Self) -> Ordering {
                self.cmp(other)
            }
            fn half(self) -> Self {
                self / 2
            }
            fn shown(self, common: i128) -> f64 {
                self as f64 / common as f64
            }
        }
    };
}

whole!(i64);
whole!(i128);

/// lcm(1..m)^2, if it fits.
pub fn common_denominator(m: usize) -> Option<i128> {
    let lcm = (1..=m as i128).try_fold(1i128, |lcm, n| lcm.checked_mul(n / gcd(lcm, n)))?;
    lcm.checked_mul(lcm)
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The weights of pairs in sets of at most m tokens.
pub struct Scale<W> {
    /// By size of the set.
    inside: Vec<W>,
    /// By sizes of the two sets, row by row.
    across: Vec<W>,
    m: usize,
    /// The denominator.
    pub common: i128,
}

impl<W: Weight> Scale<W> {
    /// The weights with `m` features, on the denominator `common`.
    pub fn new(m: usize, common: i128) -> Self {
        let sizes = || 1..=m as u32;
        let mut inside = vec![W::default()];
        inside.extend(sizes().map(|n| W::fraction(2, n, common)));
        let mut across = vec![W::default(); m + 1];
        for a in sizes() {
            across.push(W::default());
            across.extend(sizes().map(|b| W::fraction(1, a * b, common)));
        }
        Scale { inside, across, m, common }
    }

    /// Of a pair in a set of `n`.
    #[inline(always)]
    pub fn inside(&self, n: usize) -> W {
        self.inside[n]
    }

    /// Of a pair across sets of `a` and `b`.
    #[inline(always)]
    pub fn across(&self, a: usize, b: usize) -> W {
        self.across[a * (self.m + 1) + b]
    }
}
