//! Column charts and bars of block characters.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

/// Eighths of a cell, from below.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a column per value, of which the last is at the right edge. A zero is a line at the bottom in `quiet`; what is above zero is an
/// eighth of a cell at least; a value that is absent leaves its column empty.
pub(super) fn columns(
    buffer: &mut Buffer,
    area: Rect,
    values: &[Option<f64>],
    top: f64,
    style: Style,
    quiet: Style,
) {
    let levels = usize::from(area.height) * 8;
    let right = values.iter().rev().zip((area.left()..area.right()).rev());
    for (value, x) in right {
        let Some(value) = value else { continue };
        if *value <= 0.0 || top <= 0.0 {
            buffer[(x, area.bottom() - 1)].set_char(EIGHTHS[1]).set_style(quiet);
            continue;
        }
        let mut level = ((value / top * levels as f64).round() as usize).clamp(1, levels);
        for y in (area.top()..area.bottom()).rev() {
            let eighths = level.min(8);
            if eighths == 0 {
                break;
            }
            buffer[(x, y)].set_char(EIGHTHS[eighths]).set_style(style);
            level -= eighths;
        }
    }
}

/// The largest of the values, 0 of none.
pub(super) fn peak(values: &[Option<f64>]) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

/// A bar of one row: shares with the character and the style of each, from the left.
pub(super) fn bar(buffer: &mut Buffer, area: Rect, parts: &[(f64, char, Style)], rest: (char, Style)) {
    let width = usize::from(area.width);
    let mut cells: Vec<(char, Style)> = Vec::with_capacity(width);
    let mut until = 0.0;
    for (share, c, style) in parts {
        until += share.clamp(0.0, 1.0);
        let mut end = (until * width as f64).round() as usize;
        // What there is of something, is seen.
        if *share > 0.0 {
            end = end.max(cells.len() + 1);
        }
        while cells.len() < end.min(width) {
            cells.push((*c, *style));
        }
    }
    cells.resize(width, rest);
    for (x, (c, style)) in (area.left()..area.right()).zip(cells) {
        buffer[(x, area.top())].set_char(c).set_style(style);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(buffer: &Buffer) -> Vec<String> {
        let area = buffer.area;
        let row = |y| (area.left()..area.right()).map(|x| buffer[(x, y)].symbol().to_owned()).collect();
        (area.top()..area.bottom()).map(row).collect()
    }

    #[test]
    fn columns_are_scaled_and_right_aligned() {
        let check = |height: u16, values: &[Option<f64>], top: f64, expected: &[&str]| {
            let area = Rect::new(0, 0, 6, height);
            let mut buffer = Buffer::empty(area);
            columns(&mut buffer, area, values, top, Style::new(), Style::new());
            assert_eq!(rows(&buffer), expected);
        };
        check(1, &[None, Some(0.0), Some(0.001), Some(4.0), Some(8.0)], 8.0, &["  ▁▁▄█"]);
        check(2, &[Some(8.0), Some(4.0), Some(6.0), Some(9.0)], 8.0, &["  █ ▄█", "  ████"]);
        check(1, &[Some(1.0); 9], 0.0, &["▁▁▁▁▁▁"]);
        check(1, &[], 1.0, &["      "]);
    }

    #[test]
    fn bars() {
        let check = |parts: &[f64], expected: &str| {
            let area = Rect::new(0, 0, 10, 1);
            let mut buffer = Buffer::empty(area);
            let parts: Vec<_> = parts.iter().zip("#+".chars()).map(|(s, c)| (*s, c, Style::new())).collect();
            bar(&mut buffer, area, &parts, ('.', Style::new()));
            assert_eq!(rows(&buffer), [expected]);
        };
        check(&[0.5, 0.2], "#####++...");
        check(&[0.0, 0.0], "..........");
        check(&[0.001, 0.001], "#+........");
        check(&[1.0, 0.5], "##########");
        check(&[2.0, f64::NAN], "##########");
    }
}
