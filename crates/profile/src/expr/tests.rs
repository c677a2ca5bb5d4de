//! The language's grammar, its refusals, and the round trip through `Display`.

use proptest::prelude::*;

use super::*;
use crate::samples;

fn shown(text: &str) -> String {
    parse(text).map_or_else(|error| format!("{}: {error}", error.at), |expr| expr.to_string())
}

/// Precedence and grouping are C's: what is printed has parentheses only where C needs them, and
/// redundant ones vanish.
#[test]
fn precedences_are_those_of_c() {
    for (text, printed) in [
        ("((arg0 * 2)) + 1", "arg0 * 2 + 1"),
        ("arg0 * (2 + 1)", "arg0 * (2 + 1)"),
        ("arg0 - 1 - 2", "arg0 - 1 - 2"),
        ("arg0 - (1 - 2)", "arg0 - (1 - 2)"),
        ("arg0 & 3 == 1", "arg0 & 3 == 1"),
        ("arg0 & (3 == 1)", "arg0 & 3 == 1"),
        ("(arg0 & 3) == 1", "(arg0 & 3) == 1"),
        ("arg0 << 1 + 2", "arg0 << 1 + 2"),
        ("(arg0 << 1) + 2", "(arg0 << 1) + 2"),
        ("arg0 | arg1 ^ arg2 & arg3", "arg0 | arg1 ^ arg2 & arg3"),
        ("arg0 || arg1 && arg2", "arg0 || arg1 && arg2"),
        ("(arg0 || arg1) && arg2", "(arg0 || arg1) && arg2"),
        ("!arg0 == 1", "!arg0 == 1"),
        ("-(arg0 + 1) % ~0", "-(arg0 + 1) % ~0"),
        ("*(u32)(arg0+0xc80)*2", "*(u32)(arg0 + 0xc80) * 2"),
        ("arg0**(u8)(arg1)", "arg0 * *(u8)(arg1)"),
        ("arg1<arg2>=3", "arg1 < arg2 >= 3"),
    ] {
        assert_eq!(shown(text), printed, "{text}");
    }
}

/// Integers of every base come out as numbers, up to all 64 bits.
#[test]
fn integers_of_every_base() {
    for (text, value) in [
        ("0", 0),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0X_ff_", 255),
        ("0o17", 15),
        ("0b1010_1010", 0xaa),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(parse(text), Ok(Expr::Const(value)), "{text}");
    }
}

/// A walk has three arguments, and two more that are named and come in any order; what is usual is not
/// printed. Several may stand side by side.
#[test]
fn walks_are_sums_over_lists() {
    for (text, printed) in [
        ("walk( arg0,*(u64)(it),1 )", "walk(arg0, *(u64)(it), 1)"),
        (
            "walk(arg0, it, it, max=4096, end=arg0+8)",
            "walk(arg0, it, it, end = arg0 + 8, max = 4096)",
        ),
        ("walk(arg0, it, it, max = 512)", "walk(arg0, it, it)"),
        ("walk(arg0, it, 1) + walk(arg1, it, 2) * 3", "walk(arg0, it, 1) + walk(arg1, it, 2) * 3"),
        ("popcount(walk((arg0 | 1), it, 1))", "popcount(walk(arg0 | 1, it, 1))"),
    ] {
        assert_eq!(shown(text), printed, "{text}");
    }
}

/// The examples of docs/expressions.md are expressions.
#[test]
fn expressions_in_the_documentation_parse() {
    let docs = include_str!("../../../../docs/expressions.md");
    let examples = docs.split("```text\n").skip(1).filter_map(|text| text.split("```").next());
    let lines = examples.filter(|text| !text.contains("expression =")).flat_map(str::lines);
    let mut walks = 0;
    for line in lines {
        let expr = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        walks += usize::from(matches!(expr, Expr::Walk(_)));
    }
    assert!(walks > 2);
}

/// Names of the binary keep their place, and a type's name may have signs of its own.
#[test]
fn names_of_the_binary() {
    assert_eq!(
        parse("1 + var( 'CurrentMemoryContext' )"),
        Ok(Expr::Binary(
            BinaryOp::Add,
            Box::new(Expr::Const(1)),
            Box::new(Expr::Var("CurrentMemoryContext".to_owned(), 4..33)),
        ))
    );
    assert_eq!(
        parse("offsetof( struct  pool , d.last )"),
        Ok(Expr::OffsetOf {
            type_name: "struct pool".to_owned(),
            field: "d.last".to_owned(),
            span: 0..33,
        })
    );
    for name in ["ns::Map<int, char*>", "a::B<(a::Kind)1, -2, const c&, int [4]>::D"] {
        let text = format!("offsetof({name}, root)");
        assert_eq!(shown(&text), text);
    }
}

/// Every refusal stands at the byte that is wrong and says what would be right.
#[test]
fn refusals_say_where_and_what() {
    for (text, at, says) in [
        ("", 0, "expected a number"),
        ("   ", 3, "the end of the expression"),
        ("arg0 +", 6, "the end of the expression"),
        ("arg0 arg1", 5, "expected an operator or the end of the expression, found `arg1`"),
        ("(arg0", 5, "expected an operator or `)`"),
        ("arg0)", 4, "found `)`"),
        ("arg6", 0, "arguments are arg0 to arg5"),
        ("arg", 0, "arguments are arg0 to arg5"),
        ("argh", 0, "found `argh`"),
        ("1 + foo", 4, "found `foo`"),
        ("arg0 = 1", 5, "comparing is written `==`"),
        ("arg0 / 2", 5, "no division"),
        ("arg0[1]", 4, "no subscripts"),
        ("arg0 ? 1 : 2", 5, "no `?:`"),
        ("arg0.x", 4, "offsetof"),
        ("&arg0", 0, "no address-of"),
        ("*arg0", 1, "`*(u32)(address)`"),
        ("*(u24)(arg0)", 2, "u8, u16, u32, u64, i32 or i64"),
        ("*(u32)arg0", 6, "`(` and the address"),
        ("*(u32)(arg0", 11, "`)` after the address"),
        ("0x", 0, "no digits"),
        ("0xfg", 3, "no digit of a number of base 16"),
        ("12a", 2, "no digit of a number of base 10"),
        ("010", 0, "0o"),
        ("18446744073709551616", 0, "64 bits"),
        ("var(foo)", 4, "in quotes"),
        ("var(\"\")", 4, "at least one"),
        ("var(\"a b\")", 4, "without spaces"),
        ("var(\"a", 4, "never closed"),
        ("offsetof(a)", 9, "a type and a field"),
        ("offsetof(a, b", 0, "never closed"),
        ("offsetof(, b)", 9, "type's name"),
        ("offsetof(a;b, c)", 9, "type's name"),
        ("offsetof(a, b..c)", 11, "field's name"),
        ("offsetof(a, 1b)", 11, "field's name"),
        ("popcount arg0", 9, "`(` after `popcount`"),
        ("walk", 4, "`(` after `walk`"),
        (
            "walk(arg0)",
            9,
            "expected an operator or `,`: a walk is written `walk(first, next, expr)`",
        ),
        ("walk(arg0, it)", 13, "expected an operator or `,`"),
        ("walk(arg0, it, 1", 16, "expected an operator, `,`, or `)` at the end of `walk(…)`"),
        ("walk(, it, 1)", 5, "expected a number"),
        ("walk(arg0, , 1)", 11, "expected a number"),
        ("walk(arg0, it, 1, 4096)", 18, "expected `end = address` or `max = number`, each once"),
        ("walk(arg0, it, 1, until = 1)", 18, "each once, found `until`"),
        ("walk(arg0, it, 1, end = 1, end = 2)", 27, "each once, found `end`"),
        ("walk(arg0, it, 1, end == 1)", 22, "`=` after `end`"),
        ("walk(arg0, it, 1, end = it)", 24, "only in the second and third argument"),
        ("walk(arg0, it, 1, max = 0)", 24, "a number from 1 to 4096, found the number 0"),
        ("walk(arg0, it, 1, max = 4097)", 24, "a number from 1 to 4096"),
        ("walk(arg0, it, 1, max = arg1)", 24, "a number from 1 to 4096, found `arg1`"),
        ("walk(arg0, it, 1, max = 1 + 1)", 26, "at the end of `walk(…)`"),
        ("it + 1", 0, "`it` is the node of a list"),
        ("walk(it, it, 1)", 5, "only in the second and third argument"),
        ("walk(arg0, it, 1) + it", 20, "only in the second and third argument"),
        ("walk(arg0, walk(it, it, 1), 1)", 11, "cannot stand inside another"),
        ("walk(arg0, it, walk(it, it, 1))", 15, "cannot stand inside another"),
        ("arg0, arg1", 4, "found `,`"),
        ("str(arg0)", 0, "only in `label`"),
        ("arg0 + é", 7, "cannot stand"),
        ("\u{0}", 0, "cannot stand"),
    ] {
        let error = parse(text).expect_err(text);
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(error.message.contains(says), "{text}: {error}");
    }
}

/// A label is `str(…)` around the whole, and nothing else.
#[test]
fn labels_are_strings_at_an_address() {
    assert_eq!(parse_label("str(arg4)"), Ok(Expr::Arg(4)));
    for (text, at) in [("arg4", 0), ("str arg4", 4), ("str(arg4", 8), ("str(arg4) + 1", 10)] {
        assert_eq!(parse_label(text).expect_err(text).at, at, "{text}");
    }
}

/// Text that nests without end, or does not end, is refused before it can hurt.
#[test]
fn hostile_text_is_bounded() {
    for opening in ["(", "!", "-", "*(u8)(", "popcount(", "1 + ("] {
        let text = opening.repeat(MAX_EXPR_BYTES / opening.len());
        let error = parse(&text).expect_err(opening);
        assert!(error.message.contains("nested deeper"), "{opening}: {error}");
    }
    let nested = |depth: usize| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&nested(MAX_EXPR_DEPTH - 1)).is_ok());
    assert!(parse(&nested(MAX_EXPR_DEPTH)).is_err());
    // A chain is not nested: it is bounded by the text's length alone.
    let chain = format!("1{}", "+1".repeat(MAX_EXPR_BYTES / 2 - 1));
    assert_eq!(parse(&chain).map(|expr| expr.to_string().matches('+').count()), Ok(511));
    let long = "1".repeat(MAX_EXPR_BYTES + 1);
    assert!(parse(&long).expect_err("too long").message.contains("1025 bytes"));
}

/// The tables of operators and types have every one of them, once.
#[test]
fn tables_are_whole() {
    for (operator, text, binding) in BinaryOp::TABLE {
        assert_eq!(BinaryOp::from_text(text), Some((operator, binding)));
        assert_eq!(operator.written(), (text, binding));
    }
    assert_eq!(BinaryOp::Or as usize + 1, BinaryOp::TABLE.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What is printed parses to the same tree again.
    #[test]
    fn printing_and_parsing_are_inverse(expr in samples::expressions()) {
        let printed = expr.to_string();
        prop_assume!(printed.len() <= MAX_EXPR_BYTES);
        let mut again = parse(&printed).map_err(|error| TestCaseError::fail(format!("{printed}: {error}")))?;
        again.relocate(&|_| 0);
        prop_assert_eq!(again, expr, "{}", printed);
    }

    /// No text makes the parser panic, and a refusal's place is within the text.
    #[test]
    fn any_text_is_parsed_or_refused(text in "[-+*&|^<>%=!~(),.'\" 0-9a-fxé_argetuwlki]{0,60}") {
        for result in [parse(&text), parse_label(&text)] {
            if let Err(error) = result {
                prop_assert!(text.is_char_boundary(error.at), "{} {:?}", text, error);
            }
        }
    }
}
