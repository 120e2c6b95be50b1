//! The terminal while it shows the dashboard.

use std::io::{self, Stdout};

use anyhow::Context;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use vmio_report::cleanup::Cleanup;

use super::dashboard::Dashboard;

/// The terminal's alternate screen, without echo. The terminal is restored when this drops or a signal ends the command.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    _restore: Cleanup,
}

impl Screen {
    /// Switches the terminal to the alternate screen.
    pub fn open() -> anyhow::Result<Self> {
        let restore = Cleanup::register(give_back)?;
        enable_raw_mode().context("cannot set up the terminal")?;
        execute!(io::stdout(), EnterAlternateScreen).context("cannot set up the terminal")?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).context("cannot set up the terminal")?;
        Ok(Self { terminal, _restore: restore })
    }

    /// Draws a frame.
    pub fn draw(&mut self, dashboard: &Dashboard<'_>) -> anyhow::Result<()> {
        let drawn = self.terminal.draw(|frame| frame.render_widget(dashboard, frame.area()));
        drawn.map(|_| ()).context("cannot draw on the terminal")
    }
}

/// Restores the terminal. Ignores errors: if the terminal is gone, nobody would read them.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
}
