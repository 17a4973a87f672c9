//! The `perigee` binary: parse the subcommand, call one function, return its exit code.

fn main() -> std::process::ExitCode {
    perigee::cli::main()
}
