"""Small faults put into a solution, one at a time: a judge that lets one pass is not strict enough.

    python -m milestones prove m3/01 --mutants            every mutant of an exercise
    python -m milestones prove --mutants 40               forty of all exercises, drawn by --seed

A mutant turns a comparison around or moves its border, changes a number by one, a sum into a difference, `and` into
`or`, swaps two arguments, drops a `not` or a statement. And it does what learners do: rounds in another way or not at
all, takes an empty value for None, asks once where a loop asks again, reads row 0 for every row, leaves a parameter out
of a product, computes in float32, ends a search at the first that fits, takes out what is only to be read, does a thing
twice. A whole function may walk an iterable twice, leave an argument changed, or hand out one list or tensor in all
calls. One that computes the same as before can't be refused: the exercise's equivalent.toml has it, with the reason.

Source: DeMillo, Lipton, Sayward, "Hints on test data selection" (1978).
"""

from __future__ import annotations

import ast
import builtins
import copy
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from milestones.labs import blank
from milestones.labs.exercise import Exercise
from milestones.spec import MilestoneError

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
}  # fmt: skip
SYMMETRIC = {"min", "max", "minimum", "maximum", "transpose"}  # calls whose first two arguments may change places
NARROWER = {"double": "float", "float64": "float32"}
DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Break, ast.Continue, ast.If)


@dataclass(frozen=True)
class Mutant:
    """One fault in one function. `name` says what was changed: it is how equivalent.toml calls it."""

    name: str
    functions: str  # the exercise's functions, one of them with the fault, as wrong/NAME.py would have them


def mutants(exercise: Exercise, text: str) -> list[Mutant]:
    """All mutants of the exercise's functions, which `text` holds, in the order of the code."""
    found = []
    for function in exercise.functions:
        node = blank.find(text, function, exercise.file)
        count: Counter[str] = Counter()
        for change, mutated in [*_mutations(node), *_habits(node)]:
            count[change] += 1
            number = f" #{count[change]}" if count[change] > 1 else ""
            found.append(Mutant(f"{function}: {change}{number}", _standing(function, mutated)))
    return found


def equivalents(exercise: Exercise) -> dict[str, str]:
    """Mutant's name -> why it computes the same."""
    file = exercise.files.get("equivalent.toml")
    if file is None:
        return {}
    table = tomllib.loads(file.data.decode("utf-8"))
    for name, why in table.items():
        if not isinstance(why, str) or not why:
            raise MilestoneError(f"{exercise.id}/equivalent.toml: {name!r} must say why, got {why!r}")
    return table


def _mutations(function: blank.Function) -> Iterator[tuple[str, blank.Function]]:
    """(the statement's first line before and after, the function with the change)."""
    nodes = list(ast.walk(function))
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    statement_of: dict[int, ast.stmt] = {}
    for node in nodes:  # from the outside in, so that the innermost statement stays
        if isinstance(node, ast.stmt) and node is not function:
            statement_of |= {id(inside): node for inside in ast.walk(node)}
    parameters = {argument.arg for argument in [*function.args.args, *function.args.kwonlyargs]}
    inside_body = {id(node) for statement in body for node in ast.walk(statement)}
    for at, node in enumerate(nodes):
        if id(node) not in inside_body:
            continue  # the signature, the docstring
        for new in [*_changes(node), *_slips(node, parameters)]:
            mutated = copy.deepcopy(function)
            copies = list(ast.walk(mutated))
            _Put(copies[at], new).visit(mutated)
            statement = statement_of[id(node)]
            after = new if node is statement else copies[nodes.index(statement)]
            yield f"{_line(statement)}  ->  {_said(statement, after)}", ast.fix_missing_locations(mutated)


WALKED = "for _ in {name}: pass\nreturn own({arguments})"
CHANGED = """result = own({arguments})
if isinstance({name}, list): {name}[:] = [*{name}[::-1], *{name}[:1]]
elif hasattr({name}, "clear"): {name}.clear()
elif hasattr({name}, "new_ones"): {name}.copy_(1 - {name}.to(int))
return result"""
SHARED = """result = own({arguments})
kept = globals().setdefault("results of {name}", dict(list=[]))
if isinstance(result, list): kept["list"][:] = result
if not hasattr(result, "new_ones"): return kept["list"] if isinstance(result, list) else result
return kept.setdefault((result.shape, result.dtype, result.device), result.clone()).copy_(result)"""


def _habits(function: blank.Function) -> Iterator[tuple[str, blank.Function]]:
    """(what the whole function does besides, the function that does it)."""
    if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await) for node in ast.walk(function)):
        return
    for arg in [*function.args.args, *function.args.kwonlyargs]:
        kind = ast.unparse(arg.annotation) if arg.annotation else ""
        if kind.startswith(("Iterable", "Iterator")):
            yield f"walks {arg.arg} twice", _around(function, WALKED, arg.arg)
        if kind.startswith(("list", "dict", "set", "Tensor", "torch.Tensor", "Sequence[")):
            yield f"changes {arg.arg}", _around(function, CHANGED, arg.arg)
    if function.returns is not None and ast.unparse(function.returns).startswith(("list", "Tensor", "torch.Tensor")):
        yield "hands out one result in all calls", _around(function, SHARED, function.name)


def _around(function: blank.Function, code: str, name: str) -> blank.Function:
    """`function` with its own body in a function inside, which `code` calls."""
    new, own = copy.deepcopy(function), copy.deepcopy(function)
    own.name, own.decorator_list, own.returns = "own", [], None
    passed = [arg.arg for arg in own.args.args] + [f"{arg.arg}={arg.arg}" for arg in own.args.kwonlyargs]
    new.body = [own, *ast.parse(code.format(arguments=", ".join(passed), name=name)).body]
    return ast.fix_missing_locations(new)


def _line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _said(before: ast.AST, after: ast.AST) -> str:
    match before, after:
        case ast.Expr(), ast.If():
            return "twice"
        case ast.For(), ast.For() if _line(before) == _line(after):
            return "ends at the first"
    return _line(after)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of `node`."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            new.ops = [COMPARISONS[type(operator)]()]
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield new
        case ast.UnaryOp(op=ast.Not()):
            yield new.operand
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield ast.Constant(value + 1)
        case ast.BinOp() if type(new.op) in OPERATORS:
            new.op = OPERATORS[type(new.op)]()
            yield new
        case ast.Call(args=[first, second, *rest]) if ast.dump(first) != ast.dump(second) and not _is_symmetric(new):
            new.args = [second, first, *rest]
            yield new
    if isinstance(node, DROPPED):
        yield ast.Pass()


def _slips(node: ast.AST, parameters: set[str]) -> Iterator[ast.AST]:
    """What a learner may have written in the place of `node`."""
    new = copy.deepcopy(node)
    match new:
        case ast.Call(func=ast.Attribute(value=value, attr="round") as method, args=[]):
            yield value
            method.attr = "floor"
            yield new
        case ast.Call(func=ast.Attribute(value=value, attr="float"), args=[]):
            yield value
        case ast.Attribute(attr=attr) if attr in NARROWER:
            new.attr = NARROWER[attr]
            yield new
        case ast.Call(func=ast.Attribute(attr="get") as method, args=[key, *rest]):
            method.attr, new.args = "pop", [key, *(rest or [ast.Constant(None)])]
            yield new
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            yield ast.UnaryOp(ast.Not(), left)
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            yield left
        case ast.While() if not _leaves(new):
            yield ast.If(new.test, new.body, [])
        case ast.Subscript(slice=ast.Name(id=name), ctx=ast.Load()) if not _is_no_index(name):
            new.slice = ast.Constant(0)
            yield new
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Name(id=name)) if name in parameters:
            yield left
        case ast.For(body=[*_, ast.If(orelse=[]) as last]) if not _leaves(last):
            last.body.append(ast.Break())
            yield new
        case ast.Expr(value=ast.Call()):
            yield ast.If(ast.Constant(True), [new, copy.deepcopy(new)], [])


def _is_no_index(name: str) -> bool:
    return hasattr(builtins, name) or name[0].isupper()  # or a constant


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(inside, ast.Break | ast.Continue | ast.Return) for inside in ast.walk(node))


def _is_symmetric(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in SYMMETRIC


class _Put(ast.NodeTransformer):
    """Puts `new` in the place of `old`."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def _standing(function: str, node: blank.Function) -> str:
    """The function as a file has it, inside its class."""
    prefix = function.split(".")[:-1]
    for name in reversed(prefix):
        node = ast.ClassDef(name=name, bases=[], keywords=[], body=[node], decorator_list=[], type_params=[])  # type: ignore[assignment,call-arg]
    return ast.unparse(ast.fix_missing_locations(node)) + "\n"
