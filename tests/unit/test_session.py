"""A process with a Spark session writes nothing to stderr; errors of Spark are translated."""

import subprocess
import sys
import traceback
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from rebaser.dvu.spark.session import Session
from rebaser.dvu.worker.evaluate import evaluate_batches
from rebaser_core.errors import ConfigError, DvuError

PROGRAM = r"""
import os, threading, warnings
from concurrent.futures import ThreadPoolExecutor

import rebaser.dvu.spark.session
import grpc

warnings.simplefilter("ignore")  # of Python, which is right: this forks amid threads


class Echo(grpc.GenericRpcHandler):
    def service(self, _):
        return grpc.unary_unary_rpc_method_handler(lambda request, _: request)


server = grpc.server(ThreadPoolExecutor(4))
port = server.add_insecure_port("127.0.0.1:0")
server.add_generic_rpc_handlers((Echo(),))
server.start()
call = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/any/call")
over = threading.Event()


def work():
    while not over.is_set():
        call(b"x")


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
over.set()
for thread in threads:
    thread.join()
os._exit(0)  # a server that is stopped is news to the other side
"""


def test_a_process_that_is_forked_while_grpc_is_at_work_is_no_news() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_our_own_is_not_taken_for_a_lack_of_memory() -> None:
    session: Any = object.__new__(Session)
    text = "Traceback (most recent call last):\n  File\n{}: {}"
    ours = session._translate(PythonException(text.format("rebaser_core.errors.DvuError", "out of memory in a name")))
    assert ours.message == "out of memory in a name"
    assert ours.code == "dvu"
    theirs = session._translate(PythonException(text.format("RuntimeError", "can't start new thread")))
    assert theirs.message.startswith("a Spark worker reached a limit of memory or threads")


@pytest.mark.parametrize("code", ["blob_missing", "other_code", "anything"])
def test_the_code_of_a_worker_reaches_the_server_if_it_is_known(code: str) -> None:
    session: Any = object.__new__(Session)

    def fail() -> pa.RecordBatch:
        raise DvuError("a Spark worker cannot find it", code=code)

    try:
        list(evaluate_batches(fail() for _ in range(1)))
    except DvuError:
        text = traceback.format_exc()
    error = session._translate(PythonException(text))
    assert (error.message, error.code) == ("a Spark worker cannot find it", "dvu" if code == "anything" else code)
    text = "Traceback (most recent call last):\n  File\nrebaser_core.errors.DvuError: [config] no"
    assert session._translate(PythonException(text)).code == "dvu"


@pytest.mark.parametrize("token", ["ab/cd", "abcd=="])
def test_a_url_that_spark_refuses_is_told_without_its_token(token: str) -> None:
    with pytest.raises(ConfigError, match="the Spark URL is not valid: ") as caught:
        Session(f"sc://127.0.0.1:1/;token={token};use_ssl=true")
    assert "cd" not in caught.value.message
    assert "must be encoded" in caught.value.message
