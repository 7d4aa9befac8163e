"""Bad input is one line on stderr and status 2, and nothing is written."""

from pathlib import Path

import pytest
import torch

from support.command import assert_one_line, run

FIT = "fit train.csv -t price --out out"
"""What the cases of `fit` are made from; a later option of the same name holds."""


BAD: dict[str, list[str]] = {
    # what is not a command
    "fti train.csv": ["No such command 'fti'", "fit"],
    "--bogus": ["No such option: --bogus", "deepbasis --help"],
    "fit": ["Missing argument 'TRAIN'", "deepbasis fit --help"],
    "fit train.csv --out out": ["Missing option '--target'"],
    "fit train.csv -t price": ["Missing option '--out'"],
    "fit train.csv -t price --out": ["--out", "requires an argument"],
    "fit train.csv more.csv -t price --out out": ["unexpected extra argument", "more.csv"],
    "predict model": ["Missing argument 'NEW'"],
    "predict": ["Missing argument 'MODEL'"],
    "evaluate model new.csv -t price --quiet": ["No such option: --quiet"],
    f"{FIT} --epoch 3": ["No such option: --epoch", "--epochs"],
    f"{FIT} --rank abc": ["--rank", "whole number"],
    f"{FIT} --rank 1.5": ["--rank", "whole number"],
    f"{FIT} --seed abc": ["'--seed'", "integer"],
    f"{FIT} --seed -1": ["--seed must be", "from 0", "-1"],
    f"{FIT} --seed 99999999999": ["--seed must be", "99999999999"],
    f"{FIT} --weight-decay abc": ["--weight-decay", "number"],
    f"{FIT} --validation-fraction tenth": ["--validation-fraction must be a number or auto, got 'tenth'"],
    "predict model new.csv --coverage abc": ["'--coverage'", "number"],
    # options that the estimator refuses
    f"{FIT} --method dbk": ["--method must be one of", "dbk-silu", "got 'dbk'"],
    f"{FIT} --recipe mine": ["--recipe must be one of", "default", "paper", "'mine'"],
    f"{FIT} --objective mll": ["--objective must be one of", "mml", "'mll'"],
    f"{FIT} --trend bent": ["--trend must be one of", "linear", "'bent'"],
    f"{FIT} --embedding waves": ["--embedding must be one of", "fourier", "'waves'"],
    f"{FIT} --method sv-rbf --embedding fourier": ["sv-rbf", "--method", "got --embedding fourier"],
    f"{FIT} --method dnn --objective elbo": ["dnn", "--method", "objective"],
    f"{FIT} --rank 0": ["--rank must be a positive integer, got 0"],
    f"{FIT} --rank -3": ["--rank must be a positive integer, got -3"],
    f"{FIT} --width 0": ["--width must be a positive integer, got 0"],
    f"{FIT} --blocks 0": ["--blocks must be a positive integer"],
    f"{FIT} --members 0": ["--members must be a positive integer"],
    f"{FIT} --alpha -1": ["--alpha must be", ">= 0", "-1"],
    f"{FIT} --alpha nan": ["--alpha must be", "nan"],
    f"{FIT} --alpha inf": ["--alpha must be", "inf"],
    f"{FIT} --alpha small": ["--alpha must be a number or auto, got 'small'"],
    f"{FIT} --beta -0.5": ["--beta must be", ">= 0", "-0.5"],
    f"{FIT} --beta big": ["--beta must be a number or auto, got 'big'"],
    f"{FIT} --epochs 0": ["--epochs must be a positive integer, got 0"],
    f"{FIT} --epochs 1.5": ["--epochs must be a whole number or auto, got '1.5'"],
    f"{FIT} --epochs many": ["--epochs must be a whole number or auto"],
    f"{FIT} --batch-size 0": ["--batch-size must be a positive integer, got 0"],
    f"{FIT} --batch-size all": ["--batch-size must be a whole number or auto"],
    f"{FIT} --learning-rate 0": ["--learning-rate must be", "> 0"],
    f"{FIT} --learning-rate -1": ["--learning-rate must be", "> 0"],
    f"{FIT} --learning-rate fast": ["--learning-rate must be a number or auto"],
    f"{FIT} --weight-decay -1": ["--weight-decay must be", ">= 0"],
    f"{FIT} --weight-decay nan": ["--weight-decay must be"],
    f"{FIT} --validation-fraction 0": ["--validation-fraction must lie strictly between 0 and 1"],
    f"{FIT} --validation-fraction 1": ["--validation-fraction must lie strictly between 0 and 1"],
    f"{FIT} --validation-fraction 30": ["--validation-fraction must lie strictly between 0 and 1"],
    f"{FIT} --validation-fraction nan": ["--validation-fraction must"],
    f"{FIT} --patience 0": ["--patience must be a positive integer, got 0"],
    f"{FIT} --patience none": ["--patience must be a whole number or auto"],
    f"{FIT} --likelihood gamma": [
        "--likelihood must be one of",  # other tests of the process may have registered some more
        "gaussian, negative-binomial, poisson, student;",
        "gamma",
    ],
    f"{FIT} --likelihood censored": ["--likelihood 'censored' is what", "give lower or upper"],
    f"{FIT} --likelihood input-noise": ["--likelihood 'input-noise' is what", "leave it out, and give --noise input"],
    f"{FIT} --as zzz=text": ["--as says what 'zzz' is meant as", "not among the columns to predict from", "'order'"],
    f"{FIT} --drop size --as size=text": ["--as says what 'size' is meant as", "not among the columns to predict from"],
    f"{FIT} --dtype float16": ["--dtype must be one of", "float32"],
    f"{FIT} --device quantum": ["--device must be", "quantum", "cpu"],
    f"{FIT} --compile maybe": ["--compile must be", "maybe"],
    f"{FIT} --calibrate maybe": ["--calibrate must be", "maybe"],
    # columns
    "fit train.csv -t prise --out out": ["'train.csv' has no column 'prise'; did you mean 'price'?"],
    "fit train.csv -t zzz --out out": ["'train.csv' has no column 'zzz'; it has 'order'"],
    "fit train.csv -t colour --out out": [
        "target column 'colour' of 'train.csv' has 1 label that is NaN",
        "row 5",
        "--drop-missing-target",
    ],
    "fit train.csv -t day --out out": ["target column 'day'", "must hold numbers"],
    "fit text_target.csv -t price --out out": ["'price' of 'text_target.csv'", "'unknown' in row 7 (counting from 0)"],
    "fit nan_target.csv -t price --out out": [
        "'price' of 'nan_target.csv' has 2",
        "NaN",
        "row 7 (counting from 0)",
        "leave such rows out with --drop-missing-target, or remove them",
    ],
    "fit inf_target.csv -t price --out out": ["'price' of 'inf_target.csv' has 1", "inf", "row 4"],
    "fit huge_target.csv -t price --out out": ["'price' of 'huge_target.csv'", "1e+200", "row 4"],
    f"{FIT} --weight mass": ["no column 'mass'"],
    f"{FIT} --weight colour": ["weight column 'colour' of 'train.csv' must hold numbers"],
    "fit negative_weight.csv -t price --weight weight --out out": [
        "weight column 'weight' of 'negative_weight.csv' has 1",
        "negative",
        "row 6",
        "-1",
    ],
    "fit text_weight.csv -t price --weight weight --out out": ["weight column 'weight'", "'heavy' in row 6"],
    "fit nan_weight.csv -t price --weight weight --out out": [
        "weight column 'weight' of 'nan_weight.csv' has 1",
        "not finite",
        "row 6",
    ],
    "fit zero_weight.csv -t price --weight weight --out out": ["every", "zero"],
    f"{FIT} --groups team": ["no column 'team'"],
    "fit nan_shop.csv -t price --groups shop --out out": [
        "column 'shop' names groups and has 1 missing",
        "row 6 (counting from 0)",
    ],
    f"{FIT} --drop ordr": ["no column 'ordr'; did you mean 'order'?"],
    f"{FIT} --drop price": ["--drop names the column 'price'", "--target"],
    f"{FIT} --drop day --drop day": ["--drop names the column 'day'"],
    f"{FIT} --weight price": ["--weight names the column 'price'", "--target"],
    f"{FIT} --weight shop --groups shop": ["--groups names the column 'shop'", "--weight"],
    "fit price.csv -t price --out out": ["'price.csv' has no column left"],
    "fit one.csv -t price --out out": ["at least 2 rows"],
    "fit inf_size.csv -t price --out out": ["'inf_size.csv': column 'size'", "infinite", "row 8 (counting from 0)"],
    "fit old_day.csv -t price --out out": ["'old_day.csv': column 'day'", "0001-01-01", "row 2"],
    "fit nothing_size.csv -t price --out out": ["'nothing_size.csv': column 'size'", "no values", "drop it"],
    "fit twice.csv -t price --out out": ["'twice.csv' has more than one column named 'shop'"],
    # files
    "fit none.csv -t price --out out": ["'none.csv' does not exist"],
    "fit none/ -t price --out out": ["'none/' does not exist"],
    "fit folder.csv -t price --out out": ["'folder.csv' holds no table", ".tsv.gz or .parquet"],
    "fit table.xlsx -t price --out out": ["'table.xlsx'", ".csv, .csv.gz, .tsv, .tsv.gz or .parquet"],
    "fit empty.csv -t price --out out": ["'empty.csv' is empty"],
    "fit header.csv -t price --out out": ["'header.csv' has no rows"],
    "fit zipped.csv -t price --out out": ["'zipped.csv' is gzipped", ".csv.gz"],
    "fit unzipped.csv.gz -t price --out out": ["'unzipped.csv.gz' is not gzipped"],
    "fit text.parquet -t price --out out": ["'text.parquet' is not a Parquet file"],
    "fit cut.parquet -t price --out out": ["'cut.parquet' is truncated"],
    "fit nested.parquet -t price --out out": ["'nested.parquet': column 'nested' is nested", "drop"],
    "fit ragged.csv -t price --out out": ["'ragged.csv', line 92: 3 fields where the header has 8"],
    "fit - -t price --out out": ["standard input is empty"],
    "fit - --validation - -t price --out out": ["cannot both be standard input"],
    f"{FIT} --validation none.csv": ["'none.csv' does not exist"],
    f"{FIT} --validation no_size.csv": ["'no_size.csv' has no column 'size'"],
    f"{FIT} --validation price.csv": ["'price.csv' has no column 'order'"],
    f"{FIT} --validation nan_target.csv": ["'price' of 'nan_target.csv' has 2"],
    f"{FIT} --validation inf_size.csv": ["'inf_size.csv': column 'size'", "infinite", "row 8 (counting from 0)"],
    f"{FIT} --validation text_size.csv": ["'text_size.csv': column 'size'", "text", "row 8 (counting from 0)"],
    # where a model cannot go
    "fit train.csv -t price --out no/model": ["cannot write 'no/model'", "folder 'no' does not exist", "create it"],
    "fit train.csv -t price --out train.csv/model": ["'train.csv' is not a folder"],
    "fit train.csv -t price --out folder.csv/": ["cannot write 'folder.csv'", "is a folder"],
    "fit train.csv -t price --out .": ["cannot write '.'", "is a folder"],
    "fit train.csv -t price --out train.csv": ["--out 'train.csv' has the name of a table"],
    "fit train.csv -t price --out -": ["--out cannot be standard output"],
    "fit train.csv -t price --out /proc/self/model": ["cannot write '/proc/self/model'"],
    # models that are none
    "predict none new.csv": ["MODEL 'none' does not exist", "deepbasis fit"],
    "predict folder.csv new.csv": ["MODEL 'folder.csv' is a folder"],
    "predict train.csv new.csv": ["train.csv is not a deepbasis file"],
    "predict empty.model new.csv": ["empty.model is not a deepbasis file"],
    "predict cut.model new.csv": ["cut.model"],
    "predict altered.model new.csv": ["altered.model is damaged"],
    "predict newer.model new.csv": ["newer.model has format 9", "upgrade"],
    "predict checkpoint.model new.csv": ["checkpoint.model is a deepbasis 'checkpoint' file"],
    "evaluate none new.csv -t price": ["MODEL 'none' does not exist"],
    "evaluate new.parquet new.csv -t price": ["new.parquet is not a deepbasis file"],
    # tables that do not fit the model
    "predict model none.csv": ["'none.csv' does not exist"],
    "predict model header.csv": ["'header.csv' has no rows"],
    "predict model no_size.csv": ["'no_size.csv' has no column 'size'"],
    "predict model renamed.csv": ["'renamed.csv' has no column 'size'; did you mean 'Size'?"],
    "predict model inf_size.csv": ["'inf_size.csv': column 'size'", "infinite", "row 8"],
    "predict model text_size.csv": ["'text_size.csv': column 'size'", "text"],
    "predict model no_day.csv": ["'no_day.csv': column 'day'"],
    "predict model -": ["standard input is empty"],
    "predict model cut.parquet": ["'cut.parquet' is truncated"],
    "evaluate model no_size.csv -t price": ["'no_size.csv' has no column 'size'"],
    "evaluate model new.csv -t cost": ["'new.csv' has no column 'cost'"],
    "evaluate model new.csv -t colour": ["target column 'colour' of 'new.csv' must hold numbers"],
    "evaluate model nan_target.csv -t price": ["'price' of 'nan_target.csv' has 2"],
    "evaluate model folder.csv -t price": ["TEST 'folder.csv' is a folder or a pattern", "evaluate takes one file"],
    "evaluate model n*.csv -t price": ["TEST 'n*.csv' is a folder or a pattern", "evaluate takes one file"],
    # what to predict, and where to
    "predict model new.csv --id number": ["'new.csv' has no column 'number'"],
    "predict model new.csv --id order --id order": ["--id names the column 'order' twice"],
    "predict model mean.csv --id mean": ["--id 'mean' is also the name of a predicted column"],
    "predict model new.csv --coverage 0": ["--coverage must lie strictly between 0 and 1", "got 0"],
    "predict model new.csv --coverage 1": ["--coverage must lie strictly between 0 and 1", "got 1"],
    "predict model new.csv --coverage 95": ["--coverage must lie strictly between 0 and 1", "for 95 % give 0.95"],
    "predict model new.csv --coverage -0.5": ["--coverage must lie strictly between 0 and 1"],
    "predict model new.csv --coverage nan": ["--coverage must be a finite number", "got nan"],
    "predict model new.csv --quantiles 0.1,half": ["--quantiles", "'half'"],
    "predict model new.csv --quantiles 0,0.5": ["--quantiles", "'0'"],
    "predict model new.csv --quantiles 0.5,1": ["--quantiles", "'1'"],
    "predict model new.csv --quantiles 10,90": ["--quantiles", "'10'"],
    "predict model new.csv --quantiles 0.1,,0.9": ["--quantiles", "''"],
    "predict model new.csv --quantiles 0.5,0.50": ["--quantiles has 0.5 twice"],
    "predict model new.csv --quantiles nan": ["--quantiles", "'nan'"],
    "predict model new.csv --out out.txt": ["cannot write 'out.txt'", ".csv, .csv.gz, .tsv, .tsv.gz or .parquet"],
    "predict model new.csv --out no/out.csv": ["the folder 'no' does not exist"],
    "predict model new.csv --out new.csv": ["cannot write 'new.csv'", "also read"],
    "predict model new.csv --out folder.csv": ["'folder.csv'", "is a folder"],
    "predict model new.csv --out /proc/self/out.csv": ["cannot write '/proc/self/out.csv'"],
    # the demonstration
    "demo --out no": ["--out 'no' is not a folder"],
    "demo --out train.csv": ["--out 'train.csv' is not a folder"],
    "demo --seed -1": ["'--seed'"],
    "demo --quik": ["No such option: --quik", "--quick"],
}
if not torch.cuda.is_available():
    BAD[f"{FIT} --device cuda"] = ["--device 'cuda'", "CUDA device", "cpu"]


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_nothing_is_written(here, line):
    before = everything(here)
    assert_one_line(run(*line.split()), BAD[line])
    assert everything(here) == before


def test_there_are_enough_of_them():
    assert len(BAD) >= 80


@pytest.mark.parametrize("quantiles", ["", " ", ","])
def test_no_quantiles_at_all(here, quantiles):
    assert_one_line(run("predict", "model", "new.csv", "--quantiles", quantiles), ["--quantiles must be numbers"])


def test_a_name_with_a_newline_and_an_escape_stays_on_one_line(here):
    assert_one_line(run("predict", "model", "a\nb\x1b[31m.csv"), ["does not exist", "\\x1b[31m.csv"])
