//! Styles by meaning. Without colours the text itself and its weight tell the same.

use ratatui::style::{Color, Modifier, Style};

use super::figures::Weight;

/// The 16 colours of the terminal's own theme, or none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Palette {
    pub(super) color: bool,
}

impl Palette {
    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    /// Labels, rules, units: what the eye may skip.
    pub(super) fn quiet(self) -> Style {
        if self.color { Style::new().fg(Color::DarkGray) } else { Style::new().add_modifier(Modifier::DIM) }
    }

    /// Figures.
    pub(super) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Titles.
    pub(super) fn title(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    pub(super) fn good(self) -> Style {
        self.colored(Color::Green).add_modifier(Modifier::BOLD)
    }

    pub(super) fn warning(self) -> Style {
        self.colored(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(super) fn bad(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn weight(self, weight: Weight) -> Style {
        match weight {
            Weight::Note => self.title(),
            Weight::Warning => self.warning(),
            Weight::Problem => self.bad(),
        }
    }

    /// Charts and bars.
    pub(super) fn chart(self) -> Style {
        self.colored(Color::Green)
    }

    /// The second of two.
    pub(super) fn second_chart(self) -> Style {
        self.colored(Color::Blue)
    }
}
