"""What each call of a transactional producer does in each state, whatever makes the call.

The table holds for the state machine (``tests/machines/test_transactions.py``), for
:class:`~pykaproducer.Producer`, for the mock, and for both drop-in replacements and the libraries
that they replace (``test_table``). It has a letter for each call:

=====  =========================================================================================
``.``  it fits
``+``  it waits: it is the call under way, or ends it
``S``  it does not fit the state
``C``  another call is under way
``A``  the transaction has failed, and must be aborted
``F``  another producer has the transactional id
``X``  the producer is closed
``N``  the producer has no transactional id
=====  =========================================================================================
"""

from __future__ import annotations

_HEAD, *_ROWS = """
                 init other begin block offsets commit abort prepare send send_many
no_id            N    N     N     N     N       N      N     N       .    .
new              .    .     S     .     S       S      S     S       S    S
initializing     +    S     C     .     C       C      C     C       S    S
ready            .    .     .     .     S       S      S     S       S    S
open             S    S     S     S     .       .      .     .       .    .
sending_offsets  C    C     C     S     +       C      +     C       .    .
flushing         C    C     C     C     C       +      C     C       S    S
committing       C    C     C     C     C       +      C     C       S    S
preparing        C    C     C     C     C       C      C     +       S    S
aborting         C    C     C     C     C       C      +     C       S    S
failed           A    A     A     A     A       A      .     A       A    A
prepared         .    .     S     S     S       S      S     S       S    S
fenced           F    F     F     F     F       F      F     F       F    F
closed           X    X     X     X     X       X      X     X       X    X
""".strip().splitlines()

CALLS = tuple(_HEAD.split())
#: State -> call -> letter.
TABLE = {
    state: dict(zip(CALLS, letters, strict=True))
    for state, *letters in (row.split() for row in _ROWS)
}
#: The methods that errors name. ``other`` is with another id, and ``block`` a with block.
METHODS = {
    "init": "init_transactions",
    "other": "init_transactions",
    "begin": "begin_transaction",
    "block": "begin_transaction",
    "offsets": "send_offsets_to_transaction",
    "commit": "commit_transaction",
    "abort": "abort_transaction",
    "prepare": "prepare_transaction",
    "send": "send",
    "send_many": "send",
}
#: State -> the call that is under way.
UNDER_WAY = {
    "initializing": "init",
    "sending_offsets": "offsets",
    "flushing": "commit",
    "committing": "commit",
    "preparing": "prepare",
    "aborting": "abort",
}
_LATER = "; wait until that call has returned, and send in the next transaction"
#: State -> what the error of a call says that does not fit it.
TEXTS = {
    "new": "init_transactions() has not been called; call init_transactions()",
    "initializing": f"init_transactions() is under way{_LATER}",
    "ready": "there is no transaction; call begin_transaction()",
    "open": "a transaction is open; call commit_transaction() or abort_transaction() first",
    "flushing": f"the transaction is being committed{_LATER}",
    "aborting": f"the transaction is being aborted{_LATER}",
    "prepared": "the last transaction was prepared; call init_transactions() with another "
    "transactional_id: with the same one it aborts the prepared transaction",
}
TEXTS["sending_offsets"] = TEXTS["open"]
TEXTS["committing"] = TEXTS["preparing"] = TEXTS["flushing"]


def text_of(state: str, call: str) -> str:
    """Return how the error of a call that is refused in *state* begins, after the id."""
    letter, method = TABLE[state][call], METHODS[call]
    if call == "block" and letter in "NS":
        method = "transaction" if state in ("open", "sending_offsets") else method
        method = "init_transactions" if letter == "N" else method
    return {
        "S": f"{method}(): {TEXTS.get(state)}".removesuffix(_LATER if call == "other" else ""),
        "C": f"{method}(): {METHODS[UNDER_WAY.get(state, call)]}() is under way; "
        f"call that again first",
        "N": f"{method}(): the producer has no id; set transactional_id",
        "A": "the transaction must be aborted: topic ",
        "F": "another producer has taken over the transactional id, or an administrator has",
        "X": "the producer is closed",
    }[letter]
