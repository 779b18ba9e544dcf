//! nbench's LU: a system of N linear equations is made and decomposed by Crout's method with implicit partial pivoting.
//!
//! The matrix is one array of N×N doubles, row after row. Making it: a diagonal matrix, then 8·N
//! times a row drawn at random is added to another. Decomposing it: the largest element of each
//! row; then column by column: for each row its elements left of the column (or of the diagonal)
//! are multiplied with those above in the column; the pivot's row changes places with the
//! diagonal's; the rest of the column is divided.
//!
//! The extent of a run: at N = 6300, column j costs N·j multiplications over pages that grow to the
//! whole matrix, 6300 times. On a machine that pages, two of these never ended in the time of the
//! file program. So `columns` bounds the columns that are decomposed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{DOUBLE, PAGE, Touch};
use crate::error::Result;
use crate::memory::Access;

/// Time for an element of the diagonal matrix, or of a row that is added or searched, in
/// nanoseconds.
const ELEMENT_NS: u64 = 4;
/// Time for a multiplication in a column, in nanoseconds: each element above lies on another page,
/// so the address translation misses.
const MULTIPLY_NS: u64 = 10;
/// Additions of rows for each row of the matrix.
const SCRAMBLES_PER_ROW: u64 = 8;

/// A run of LU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lu {
    /// Number of rows and of columns.
    pub n: u64,
    /// Number of columns that are decomposed, at most N.
    pub columns: u64,
    /// Seed of the choice of rows and pivots.
    pub seed: u64,
}

impl Lu {
    /// Returns the pages it needs.
    pub fn pages(&self) -> u32 {
        (self.n * self.n * DOUBLE).div_ceil(PAGE) as u32
    }

    fn page(&self, row: u64, column: u64) -> u64 {
        (row * self.n + column) * DOUBLE / PAGE
    }

    /// Returns the pages of the first `columns` elements of a row.
    fn row(&self, row: u64, columns: u64) -> std::ops::Range<u64> {
        match columns {
            0 => 0..0,
            _ => self.page(row, 0)..self.page(row, columns - 1) + 1,
        }
    }

    /// Runs the program.
    ///
    /// # Errors
    /// Fails if the swap fails.
    pub fn run(&self, process: &impl Touch) -> Result<()> {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        self.make(process, &mut rng)?;
        for row in 0..self.n {
            self.touch_row(process, row, self.n, Access::Read)?;
        }
        for column in 0..self.columns.min(self.n) {
            self.decompose(process, column, &mut rng)?;
        }
        Ok(())
    }

    fn make(&self, process: &impl Touch, rng: &mut Pcg64Mcg) -> Result<()> {
        for row in 0..self.n {
            self.touch_row(process, row, self.n, Access::Write)?;
        }
        for _ in 0..SCRAMBLES_PER_ROW * self.n {
            let (to, from) = (rng.random_range(0..self.n), rng.random_range(0..self.n));
            if to == from {
                continue;
            }
            for (to, from) in self.row(to, self.n).zip(self.row(from, self.n)) {
                process.touch(to, Access::Read)?;
                process.touch(from, Access::Read)?;
                process.touch(to, Access::Write)?;
                process.compute(ELEMENT_NS * PAGE / DOUBLE);
            }
        }
        Ok(())
    }

    fn touch_row(&self, process: &impl Touch, row: u64, columns: u64, access: Access) -> Result<()> {
        for page in self.row(row, columns) {
            process.touch(page, access)?;
            process.compute(ELEMENT_NS * PAGE / DOUBLE);
        }
        Ok(())
    }

    fn decompose(&self, process: &impl Touch, column: u64, rng: &mut Pcg64Mcg) -> Result<()> {
        // Until pages are looked at for replacement, those of the column above are as they were
        // touched for the row before.
        let mut touched = (0, None);
        for row in 0..self.n {
            process.touch(self.page(row, column), Access::Read)?;
            let factors = row.min(column);
            self.touch_column(process, column, factors, &mut touched)?;
            for page in self.row(row, factors) {
                process.touch(page, Access::Read)?;
            }
            process.compute(factors * MULTIPLY_NS);
            process.touch(self.page(row, column), Access::Write)?;
        }
        let pivot = rng.random_range(column..self.n);
        if pivot != column {
            for (one, other) in self.row(pivot, self.n).zip(self.row(column, self.n)) {
                process.touch(one, Access::Write)?;
                process.touch(other, Access::Write)?;
                process.compute(ELEMENT_NS * PAGE / DOUBLE);
            }
        }
        for row in column + 1..self.n {
            process.touch(self.page(row, column), Access::Write)?;
            process.compute(ELEMENT_NS);
        }
        Ok(())
    }

    /// Touches the elements of the column above: all, if pages were looked at since; those that are
    /// new for this row, if not.
    fn touch_column(
        &self,
        process: &impl Touch,
        column: u64,
        rows: u64,
        touched: &mut (u64, Option<u64>),
    ) -> Result<()> {
        let from = if touched.1 == Some(process.looks()) { touched.0 } else { 0 };
        let looks = process.looks();
        for row in from..rows {
            process.touch(self.page(row, column), Access::Read)?;
        }
        *touched = (rows, Some(looks));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::super::tests::Recorder;
    use super::*;

    /// Returns the pages, with true for those that were written to.
    fn pages(touched: impl IntoIterator<Item = (u64, Access)>) -> BTreeMap<u64, bool> {
        let mut pages = BTreeMap::new();
        for (page, access) in touched {
            *pages.entry(page).or_default() |= access == Access::Write;
        }
        pages
    }

    #[test]
    fn columns_touch_what_crouts_loops_touch() {
        let lu = Lu { n: 130, columns: 130, seed: 3 };
        let page = |row: u64, column: u64| (row * 130 + column) * 8 / 4096;
        for j in [0, 1, 40, 77, 128, 129] {
            let recorder = Recorder::default();
            lu.decompose(&recorder, j, &mut Pcg64Mcg::seed_from_u64(j)).unwrap();
            let pivot = Pcg64Mcg::seed_from_u64(j).random_range(j..130);
            let mut naive = Vec::new();
            for i in 0..130 {
                for k in 0..i.min(j) {
                    naive.extend([(page(i, k), Access::Read), (page(k, j), Access::Read)]);
                }
                naive.extend([(page(i, j), Access::Read), (page(i, j), Access::Write)]);
            }
            if pivot != j {
                naive.extend((0..130).flat_map(|k| [(page(pivot, k), Access::Write), (page(j, k), Access::Write)]));
            }
            naive.extend((j + 1..130).map(|i| (page(i, j), Access::Write)));
            assert_eq!(pages(recorder.touched.take()), pages(naive), "column {j}");
        }
    }

    #[test]
    fn what_is_not_touched_again_was_touched_since_the_last_look() {
        /// A recorder that reports a look at the pages now and then.
        struct Looking(Recorder, std::cell::Cell<u64>);
        impl Touch for Looking {
            fn touch(&self, page: u64, access: Access) -> Result<()> {
                self.0.touch(page, access)
            }
            fn compute(&self, _ns: u64) {
                self.1.set(self.1.get() + 1);
            }
            fn looks(&self) -> u64 {
                self.1.get() / 7
            }
        }
        let lu = Lu { n: 130, columns: 130, seed: 3 };
        let (all, some) = (Recorder::default(), Looking(Recorder::default(), std::cell::Cell::new(0)));
        lu.decompose(&all, 77, &mut Pcg64Mcg::seed_from_u64(1)).unwrap();
        lu.decompose(&some, 77, &mut Pcg64Mcg::seed_from_u64(1)).unwrap();
        let (all, some) = (all.touched.take(), some.0.touched.take());
        assert!(some.len() < all.len());
        let set = |touched: &[(u64, Access)]| touched.iter().map(|(page, _)| *page).collect::<BTreeSet<_>>();
        assert_eq!(set(&some), set(&all));
    }

    #[test]
    fn rows_are_the_pages_of_their_elements() {
        let lu = Lu { n: 700, columns: 700, seed: 1 };
        for (row, columns) in [(0, 1), (0, 512), (0, 513), (1, 700), (699, 700), (3, 0)] {
            let naive: BTreeSet<u64> = (0..columns).map(|column| (row * 700 + column) * 8 / 4096).collect();
            assert!(lu.row(row, columns).eq(naive), "{row}, {columns}");
        }
        assert_eq!(Lu { n: 6300, columns: 0, seed: 1 }.pages(), 77_520);
    }
}
