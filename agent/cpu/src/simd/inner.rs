//! Products of two matrices that are both read along their rows: `a b^T` where `a` has so few rows that repacking anything for
//! [`super::Product`] costs more than it saves.

use macerator::{Simd, with_simd};

use super::{MatrixMut, load, splat, store};
use crate::threads::{for_each, parts};

/// Rows of each operand in a register tile.
const TILE: usize = 4;

/// `out[row][column] = a[row] . b[column]`: `a` is `[rows, k]`, `b` is `[columns, k]`, both row-major. All threads share `b`,
/// which is read once for every four rows of `a`.
pub(crate) fn inner_products(a: &[f32], b: &[f32], k: usize, out: MatrixMut<'_>) {
    assert!(k > 0 && a.len() >= out.rows() * k && b.len() >= out.columns() * k, "the operands are too small");
    let ranges = parts(out.columns(), out.columns() * k);
    let outs = ranges.iter().zip(out.split_columns(&ranges)).collect();
    for_each(outs, |(&(first, _), mut out): (&(usize, usize), MatrixMut<'_>)| {
        for column in (0..out.columns()).step_by(TILE) {
            for row in (0..out.rows()).step_by(TILE) {
                let (a, b) = (&a[row * k..], &b[(first + column) * k..]);
                let (rows, columns) = (TILE.min(out.rows() - row), TILE.min(out.columns() - column));
                let mut out = out.part((row, rows), (column, columns));
                macro_rules! tiles {
                    ($($rows:literal $columns:literal),*) => {
                        match (rows, columns) {
                            $(($rows, $columns) => tile::<$rows, $columns>(a, b, k, &mut out),)*
                            (_, columns) => (0..rows).for_each(|row| {
                                for column in 0..columns {
                                    tile::<1, 1>(&a[row * k..], &b[column * k..], k, &mut out.part((row, 1), (column, 1)));
                                }
                            }),
                        }
                    };
                }
                tiles!(1 4, 2 4, 3 4, 4 4);
            }
        }
    });
}

/// The sums of one register tile.
#[with_simd]
fn tile<'o, S: Simd, const ROWS: usize, const COLUMNS: usize>(a: &[f32], b: &[f32], k: usize, out: &mut MatrixMut<'o>) {
    let lanes = S::lanes32();
    let whole = k / lanes * lanes;
    assert!(a.len() >= ROWS * k && b.len() >= COLUMNS * k, "a tile reaches past its operands");
    let mut sums = [[splat::<S>(0.0); COLUMNS]; ROWS];
    let mut at = 0;
    while at < whole {
        let mut columns = [splat::<S>(0.0); COLUMNS];
        for column in 0..COLUMNS {
            // SAFETY: `at` plus a vector is at most `k`, and the operands have that many elements in each row.
            columns[column] = unsafe { load::<S>(b, column * k + at) };
        }
        for row in 0..ROWS {
            // SAFETY: as above.
            let value = unsafe { load::<S>(a, row * k + at) };
            for column in 0..COLUMNS {
                sums[row][column] = columns[column].mul_add(value, sums[row][column]);
            }
        }
        at += lanes;
    }
    for row in 0..ROWS {
        let (a, out) = (&a[row * k + whole..(row + 1) * k], out.row(row));
        for column in 0..COLUMNS {
            let mut lanes_sums = [0.0; super::SLACK];
            // SAFETY: a vector has at most `SLACK` elements.
            unsafe { store::<S>(&mut lanes_sums, 0, sums[row][column]) };
            let b = &b[column * k + whole..(column + 1) * k];
            let rest: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            out[column] = lanes_sums.iter().sum::<f32>() + rest;
        }
    }
}
