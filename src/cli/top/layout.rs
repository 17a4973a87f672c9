//! Where panels lie: what fits is shown, most important first, and spare rows become charts.

use ratatui::layout::Rect;

/// Smallest screen that shows anything.
pub(super) const MIN_WIDTH: u16 = 36;
pub(super) const MIN_HEIGHT: u16 = 8;
/// Two columns of panels from here on.
const WIDE: (u16, u16) = (110, 30);
/// With fewer rows panels have no titles.
const TITLES_FROM: u16 = 18;

/// A group of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Panel {
    Requests,
    Tokens,
    Latency,
    Cache,
    Speculation,
    Guard,
    Engine,
}

/// The parts of a screen.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) header: Rect,
    pub(super) notices: Rect,
    /// Everything between notices and footer.
    pub(super) body: Rect,
    pub(super) panels: Vec<(Panel, Rect)>,
    /// Whether the first row of a panel is its title.
    pub(super) titles: bool,
    pub(super) footer: Rect,
}

/// A panel's rows: those it needs, and those it can use.
type Wish = (Panel, u16, u16);

impl Layout {
    /// `None` if the area is too small.
    pub(super) fn of(area: Rect) -> Option<Self> {
        if area.width < MIN_WIDTH || area.height < MIN_HEIGHT {
            return None;
        }
        let titles = area.height >= TITLES_FROM;
        let header_rows = if area.height >= 10 { 2 } else { 1 };
        let notice_rows = if area.height >= 32 { 2 } else { 1 };
        let footer_rows = u16::from(area.height >= 9);
        let header = Rect { height: header_rows, ..area };
        let notices = Rect { y: header.bottom(), height: notice_rows, ..area };
        let footer = Rect { y: area.bottom() - footer_rows, height: footer_rows, ..area };
        let body = Rect { y: notices.bottom(), height: footer.y - notices.bottom(), ..area };
        let panels = if (area.width, area.height) >= WIDE && area.height >= WIDE.1 {
            let gap = 2;
            let left = Rect { width: (body.width - gap) / 2, ..body };
            let right = Rect { x: left.right() + gap, width: body.width - gap - left.width, ..body };
            let mut panels =
                stack(left, &[(Panel::Requests, 4, 12), (Panel::Tokens, 3, 21), (Panel::Guard, 2, 2)]);
            let wishes = [
                (Panel::Latency, 4, 12),
                (Panel::Cache, 3, 9),
                (Panel::Speculation, 2, 2),
                (Panel::Engine, 4, 9),
            ];
            panels.extend(stack(right, &wishes));
            panels
        } else if titles {
            let wishes = [
                (Panel::Requests, 4, 12),
                (Panel::Tokens, 3, 13),
                (Panel::Latency, 4, 4),
                (Panel::Cache, 3, 8),
                (Panel::Engine, 2, 4),
                (Panel::Speculation, 2, 2),
                (Panel::Guard, 2, 2),
            ];
            stack(body, &wishes)
        } else {
            let wishes = [
                (Panel::Requests, 1, 3),
                (Panel::Tokens, 2, 2),
                (Panel::Latency, 2, 3),
                (Panel::Cache, 1, 2),
                (Panel::Engine, 1, 2),
                (Panel::Speculation, 1, 1),
                (Panel::Guard, 1, 1),
            ];
            stack(body, &wishes)
        };
        Some(Self { header, notices, body, panels, titles, footer })
    }
}

/// Panels below one another. Those at the end of the list are left out first; spare rows go round.
fn stack(area: Rect, wishes: &[Wish]) -> Vec<(Panel, Rect)> {
    let mut spare = area.height;
    let mut rows: Vec<(Panel, u16, u16)> = Vec::new();
    for (panel, needed, most) in wishes {
        if *needed > spare {
            break;
        }
        spare -= needed;
        rows.push((*panel, *needed, *most));
    }
    while spare > 0 && rows.iter().any(|(_, height, most)| height < most) {
        for (_, height, most) in &mut rows {
            if spare > 0 && *height < *most {
                (*height, spare) = (*height + 1, spare - 1);
            }
        }
    }
    // What no panel can use stands between them.
    let gap = u16::from(usize::from(spare) + 1 >= rows.len().max(2));
    let mut y = area.y;
    rows.into_iter()
        .map(|(panel, height, _)| {
            let rect = Rect { y, height, ..area };
            y += height + gap;
            (panel, rect)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panels(width: u16, height: u16) -> String {
        let layout = Layout::of(Rect::new(0, 0, width, height)).unwrap();
        let panel = |(panel, rect): &(Panel, Rect)| format!("{panel:?} {}", rect.height);
        layout.panels.iter().map(panel).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn panels_by_size() {
        for (width, height, expected) in [
            (80, 24, "Requests 4, Tokens 3, Latency 4, Cache 3, Engine 2, Speculation 2, Guard 2"),
            (80, 22, "Requests 4, Tokens 3, Latency 4, Cache 3, Engine 2, Speculation 2"),
            (80, 18, "Requests 4, Tokens 3, Latency 4, Cache 3"),
            (40, 10, "Requests 1, Tokens 2, Latency 2, Cache 1"),
            (40, 8, "Requests 1, Tokens 2, Latency 2, Cache 1"),
            (60, 14, "Requests 2, Tokens 2, Latency 2, Cache 1, Engine 1, Speculation 1, Guard 1"),
        ] {
            assert_eq!(panels(width, height), expected, "{width}x{height}");
        }
    }

    #[test]
    fn too_small() {
        assert!(Layout::of(Rect::new(0, 0, MIN_WIDTH - 1, 50)).is_none());
        assert!(Layout::of(Rect::new(0, 0, 50, MIN_HEIGHT - 1)).is_none());
    }

    #[test]
    fn parts_lie_inside_and_apart() {
        for width in [MIN_WIDTH, 79, 80, 110, 120, 300] {
            for height in MIN_HEIGHT..120 {
                let area = Rect::new(0, 0, width, height);
                let layout = Layout::of(area).unwrap();
                let mut rects = vec![layout.header, layout.notices, layout.footer];
                rects.extend(layout.panels.iter().map(|(_, rect)| *rect));
                for (index, rect) in rects.iter().enumerate() {
                    assert_eq!(rect.intersection(area), *rect, "{width}x{height}");
                    let apart = rects[..index].iter().all(|other| !other.intersects(*rect));
                    assert!(apart, "{width}x{height}: {layout:?}");
                }
            }
        }
    }
}
